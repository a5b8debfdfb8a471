// Means and variances of channels for batch normalization, in as few passes over the memory as possible.
#pragma once

#include <ATen/ATen.h>

#include <utility>

namespace distdl::kernels {

/// The mean of each channel of a tensor (N, C, *others), and the sum of the squared deviations from it, in double
/// precision; 0 for channels without elements. The tensor is contiguous, in host memory, of single or double precision.
/// It is read once: pieces that stay in the cache have moments of their own, which Chan's formula merges.
std::pair<at::Tensor, at::Tensor> channel_moments(const at::Tensor& x);

/// to = gradient * scale + (x - pivot) * slope + constant, where all but the first two and x have a value for each
/// channel. All are of one dtype, contiguous, and as for channel_moments; `to` may be `gradient`.
void combine_channels(const at::Tensor& to, const at::Tensor& gradient, const at::Tensor& scale, const at::Tensor& x,
                      const at::Tensor& pivot, const at::Tensor& slope, const at::Tensor& constant);

}  // namespace distdl::kernels
