// Layers whose inputs must not be written before their backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace distdl::autograd {

/// Makes the backward pass throw std::runtime_error, on every rank that has written its input, as torch.nn's layers do
/// that save their inputs. Workers may compute from a copy of the input, which a write does not change, or from parts
/// of it, which torch's message would name. The input is not kept alive.
void check_input_unmodified(const std::string& layer, const at::Tensor& input, const at::Tensor& result);

}  // namespace distdl::autograd
