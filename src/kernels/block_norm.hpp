// Normalization of blocks by the moments of groups that several workers share, under autograd.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <utility>

#include "kernels/moment_groups.hpp"
#include "kernels/norm_by_torch.hpp"

namespace distdl::kernels {

/// The moments of the channels of a block, as a message: see MomentGroups. The first result stands for x in
/// normalize_block(), and must have no other use.
///
/// Both functions read a large block once in each direction, and save only the block: torch's derivatives of a composed
/// formula read it about three times as often, and save further tensors of its size. Higher derivatives, forward-mode
/// derivatives, and devices without kernels use torch's operations.
std::pair<at::Tensor, at::Tensor> block_moments(const at::Tensor& x, const MomentGroups& groups);

struct Normalized {
  at::Tensor result, mean, squares;  // the last two of the groups, without derivatives
};

/// (x - mean) / sqrt(variance + eps) * weight + bias, by channel. Channels take weights and biases by turns: channel c
/// has the weight at index c modulo the number of weights.
///
/// The mean, rounded to the precision of x, is subtracted before the product: a mean much larger than the deviations
/// causes no error.
///
/// x is from block_moments(); `messages` are the messages of all workers.
Normalized normalize_block(const at::Tensor& x, const at::Tensor& messages,
                           const std::shared_ptr<const MomentGroups>& groups, const std::optional<at::Tensor>& weight,
                           const std::optional<at::Tensor>& bias, const NormOptions& options);

}  // namespace distdl::kernels
