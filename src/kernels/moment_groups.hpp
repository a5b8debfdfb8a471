// Moments of parts of groups, and of the whole groups.
//
// Source: T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
// Variances" (1979).
#pragma once

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "kernels/channel_moments.hpp"

namespace distdl::kernels {

/// How moments that workers send each other form groups: a group is normalized by its own moments, and consists of
/// channels of blocks of several workers.
///
/// A message has the means of a worker's channels, then the sums of squared deviations from them, in double precision.
/// Mean and squares of a group follow from Chan's formula:
///
///     mean = sum of count * mean of a part / total        squares = sum of squares of a part + count * apart^2
///
/// where apart is the difference of the two means. It has no term that loses a small variance beside a large mean.
struct MomentGroups {
  /// `sizes` has the number of channels in each worker's message. `group` and `count` have the group and the number of
  /// elements of each of these channels, `own` the group of each channel of this worker's block. `total` is the number
  /// of elements of a group.
  MomentGroups(Channels block_channels, const std::vector<std::int64_t>& sizes, at::Tensor group_of, at::Tensor counts,
               at::Tensor own_groups, std::int64_t groups, double total_count);

  /// The means of the groups, and the sums of squared deviations from them.
  std::pair<at::Tensor, at::Tensor> merge(const at::Tensor& messages) const;
  /// The gradient of the messages from the gradients of these two.
  at::Tensor merge_backward(const at::Tensor& messages, const at::Tensor& mean, const double* of_mean,
                            const double* of_squares) const;
  /// merge() by torch's operations, which have derivatives of all kinds.
  std::pair<at::Tensor, at::Tensor> merge_by_torch(const at::Tensor& messages) const;

  Channels channels;
  at::Tensor group, count, own;
  std::int64_t size;  // number of groups
  double total;       // elements of a group
  at::Tensor places;  // (2, channels): of the means and of the squares in the messages
};

}  // namespace distdl::kernels
