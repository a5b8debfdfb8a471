// The memory of tensors on the CPU. That of large ones is kept for the next ones: fresh memory costs several times the
// copy into it.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/page_heap.hpp"

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

/// Lets torch take the memory of all large tensors on the CPU from the pool.
void allocate_all_tensors();

/// The memory of large tensors.
base::PageHeap& pool();

}  // namespace distdl::kernels
