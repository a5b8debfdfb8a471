// Memory for results and messages that is kept for the next ones: fresh memory costs several times the copy into it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace distdl::kernels {

/// Like at::empty, from the pool where the tensor is large enough to be worth it. The memory goes back to the pool when
/// the last tensor that uses it is gone.
at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options);

/// x without a pending conjugation or negation: x itself, or a copy of it.
at::Tensor resolved(const at::Tensor& x);

/// x in contiguous memory, resolved: x itself, or a copy of it.
at::Tensor contiguous(const at::Tensor& x);

/// x in another dtype: x itself, or a contiguous copy of it.
at::Tensor converted(const at::Tensor& x, c10::ScalarType dtype);

/// A contiguous copy.
at::Tensor copy_of(const at::Tensor& x);

/// How many bytes of unused memory the pool may keep. Memory beyond that is given back to the system.
void set_pool_limit(std::size_t bytes);
std::size_t pool_limit();

/// How many bytes of unused memory the pool keeps.
std::size_t pool_size();

/// Gives all unused memory back to the system.
void empty_pool();

}  // namespace distdl::kernels
