// Tensors without values, as a recorded model computes with them.
#pragma once

#include <ATen/core/Tensor.h>

namespace distdl::autograd {

/// A tensor on the device "meta". No mode of torch sees it being made.
at::Tensor without_values(at::IntArrayRef shape, at::IntArrayRef strides, at::ScalarType dtype);

/// Lets autograd take a tensor for the result of a call, so that it asks for gradients and is no leaf. A backward pass
/// through it throws.
void take_for_result(const at::Tensor& tensor);

}  // namespace distdl::autograd
