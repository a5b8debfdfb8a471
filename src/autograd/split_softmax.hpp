// Softmax over an axis that is split over workers, under autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "agreement/derivatives.hpp"
#include "kernels/block_softmax.hpp"
#include "operators/linear_operator.hpp"

namespace distdl::autograd {

/// The operators over the workers along the axis.
struct AlongAxis {
  std::int64_t axis;
  std::shared_ptr<operators::Primitive> gather, sum;
};

/// The largest element, as a constant, and the log-sum-exp relative to it. Has derivatives of any order by x.
/// Collective.
kernels::LogSum log_sum_exp(const at::Tensor& x, const AlongAxis& over);

/// The softmax or its logarithm. It saves its result alone, exchanges a largest element and a sum, and in the backward
/// pass a sum. torch's derivatives of the formula would read and save more tensors of the size of x. Collective.
///
/// `derivatives` are those of any rank.
at::Tensor softmax(kernels::Softmax kind, const at::Tensor& x, const AlongAxis& over,
                   agreement::Derivatives derivatives);

}  // namespace distdl::autograd
