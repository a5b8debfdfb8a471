// Boxes of a tensor as tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "geometry/interval.hpp"

namespace distdl::kernels {

/// The part of a tensor that a box describes, in the tensor's memory.
at::Tensor view_of(const at::Tensor& whole, const geometry::Box& box);

}  // namespace distdl::kernels
