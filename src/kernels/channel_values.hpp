// Parameters and running statistics of channels, as numbers in double precision.
#pragma once

#include <ATen/ATen.h>

#include "kernels/channel_moments.hpp"

namespace distdl::kernels {

/// The numbers of a tensor; none if it is not defined.
Values numbers_of(const at::Tensor& tensor);

/// The number of a channel, where channels have weights or biases by turns.
double by_turns(const Values& values, std::size_t channel, double otherwise);

/// A tensor of such numbers, in the shape and dtype of another tensor.
at::Tensor as_tensor(const Values& values, const at::Tensor& like);

/// Running statistics: running = (1 - momentum) * running + momentum * value / divisor.
void follow(const at::Tensor& running, const at::Tensor& value, double divisor, double momentum);

}  // namespace distdl::kernels
