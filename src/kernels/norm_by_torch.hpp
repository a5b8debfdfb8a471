// Moments and normalization by torch's operations: for derivatives of all kinds, and devices without kernels.
#pragma once

#include <ATen/ATen.h>

#include <utility>

#include "kernels/moment_groups.hpp"

namespace distdl::kernels {

/// The options of a normalization.
struct NormOptions {
  double eps;
  double beyond;         // in place of a variance beyond the range of the dtype in which x is computed
  at::ScalarType dtype;  // of the result
};

/// The largest number of the dtype in which x is computed.
double largest(const at::Tensor& x);

/// A number, rounded to the dtype in which x is computed.
double rounded(double number, const at::Tensor& x);

/// The message with the moments of the channels of a block.
at::Tensor moments_by_torch(const at::Tensor& input, const Channels& channels);

/// A block, normalized by the moments of its groups; see normalize_block().
at::Tensor normalized_by_torch(const at::Tensor& input, const std::pair<at::Tensor, at::Tensor>& moments,
                               const MomentGroups& groups, const at::Tensor& weight, const at::Tensor& bias,
                               const NormOptions& options);

}  // namespace distdl::kernels
