// The local parts of a softmax over an axis that is split over workers, in pieces that stay in the cache. What is
// summed along the axis keeps it, with extent 1.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace distdl::kernels {

/// The largest elements of a block, and its sums of exp(x - largest): a message, with these two along the axis. -inf
/// and 0 where there are no elements. `powers`, if defined and contiguous, receives exp(x - largest).
at::Tensor log_sums(const at::Tensor& x, std::int64_t axis, const at::Tensor& powers = {});
/// The same with torch's derivatives of the sums; the largest elements are constants.
at::Tensor log_sums_by_torch(const at::Tensor& x, std::int64_t axis);

/// Of all workers.
struct LogSum {
  at::Tensor largest;  // a constant; instead of -inf the lowest number, for -inf - (-inf) is nan
  at::Tensor log_sum;  // the logarithm of the sum of exp(x - largest)
};
/// From the messages, side by side along the axis.
LogSum merged(const at::Tensor& messages, std::int64_t axis);

/// exp(x - largest) * scale, where the last two have extent 1 along the axis.
at::Tensor scaled_powers(const at::Tensor& x, const at::Tensor& largest, const at::Tensor& scale, std::int64_t axis);

enum class Softmax : bool { powers, logarithm };

/// A block of the result. `powers` and `message` are from log_sums(), and `powers` becomes the result.
void finish(Softmax kind, const at::Tensor& x, std::int64_t axis, const at::Tensor& powers, const at::Tensor& message,
            const LogSum& all);

/// The sums along the axis that the gradient of x needs of all workers, from the gradient of the result y.
at::Tensor sums_of_gradient(Softmax kind, const at::Tensor& gradient, const at::Tensor& y, std::int64_t axis);
/// The gradient of x, from the sums of the gradients of all workers.
at::Tensor gradient_of_input(Softmax kind, const at::Tensor& gradient, const at::Tensor& y, const at::Tensor& sums,
                             std::int64_t axis);

}  // namespace distdl::kernels
