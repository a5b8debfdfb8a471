// Means and variances of channels, normalization by them, and its derivatives, in as few passes over memory as
// possible.
#pragma once

#include <ATen/ATen.h>

#include <utility>
#include <vector>

namespace distdl::kernels {

using Values = std::vector<double>;

/// A tensor as (outer, channels, inner): some adjacent dimensions are the channels.
struct Channels {
  std::int64_t first = 1, last = 2;  // the dimensions before `last`, from `first` on

  std::int64_t count(const at::Tensor& x) const;
  /// The tensor in these three dimensions.
  at::Tensor view(const at::Tensor& x) const;
};

/// Whether the functions below take x: of floating point, in host memory, contiguous or, with the channels in the
/// second dimension, in torch's order of channels last. Half precision is computed in single precision, a piece at a
/// time.
bool has_channel_kernels(const at::Tensor& x, const Channels& channels);

/// The dtype in which x is computed.
at::ScalarType compute_dtype(const at::Tensor& x);

/// The mean of each channel, and the sum of the squared deviations from it, in double precision; 0 for channels without
/// elements. x is read once: pieces that stay in the cache have moments of their own, which Chan's formula merges.
void channel_moments(const at::Tensor& x, const Channels& channels, double* means, double* squares);

/// (x - pivot) * scale + shift, in a dtype that is the dtype of x or compute_dtype(x). The other three have a value for
/// each channel, and are rounded to compute_dtype(x).
at::Tensor normalize_channels(const at::Tensor& x, const Channels& channels, const Values& pivot, const Values& scale,
                              const Values& shift, at::ScalarType dtype);

/// The sums of gradient and of gradient * (x - pivot) by channel. The gradient is in the same order of memory as x.
std::pair<Values, Values> channel_products(const at::Tensor& gradient, const at::Tensor& x, const Channels& channels,
                                           const Values& pivot);

/// gradient * scale + (x - pivot) * slope + constant, in the dtype of x. All but gradient and x have a value for each
/// channel, and are rounded to compute_dtype(x).
at::Tensor combine_channels(const at::Tensor& gradient, const Values& scale, const at::Tensor& x,
                            const Channels& channels, const Values& pivot, const Values& slope, const Values& constant);

/// A tensor with its numbers in memory, without a pending negation. Derivatives may be torch's tensors of zeros, which
/// have no memory.
at::Tensor in_memory(const at::Tensor& tensor);

/// The same, in the order of memory of x, for the functions above.
at::Tensor in_order_of(const at::Tensor& tensor, const at::Tensor& x);

}  // namespace distdl::kernels
