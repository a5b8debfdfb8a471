#include "kernels/block_softmax.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "kernels/below_autograd.hpp"

namespace distdl::kernels {

namespace {

constexpr std::int64_t kPieceOfRows = 1 << 17;  // elements that stay in the cache during several operations

std::vector<std::int64_t> with_extent(const at::Tensor& x, std::int64_t axis, std::int64_t extent) {
  auto sizes = x.sizes().vec();
  sizes[static_cast<std::size_t>(axis)] = extent;
  return sizes;
}

/// Calls action(axis, pieces) for pieces of tensors: some of the rows that the dimensions before the axis are, joined.
/// Tensors that are written must be contiguous. No pieces if the first tensor is empty.
template <std::size_t count, class Action>
void in_pieces(std::int64_t axis, std::array<at::Tensor, count> tensors, const Action& action) {
  const auto sizes = tensors.front().sizes();
  const auto elements = tensors.front().numel();
  if (elements == 0) return;
  std::int64_t rows = 1;
  for (std::int64_t d = 0; d < axis; ++d) rows *= sizes[static_cast<std::size_t>(d)];
  const auto step = std::max<std::int64_t>(1, kPieceOfRows * rows / elements);
  if (step >= rows || !tensors.front().is_cpu()) return action(axis, tensors);
  for (auto& tensor : tensors) {
    if (!tensor.defined()) continue;
    std::vector<std::int64_t> joined{rows};
    joined.insert(joined.end(), tensor.sizes().begin() + axis, tensor.sizes().end());
    tensor = tensor.reshape(joined);
  }
  for (std::int64_t start = 0; start < rows; start += step) {
    auto piece = tensors;
    for (auto& tensor : piece) {
      if (tensor.defined()) tensor = tensor.narrow(0, start, std::min(step, rows - start));
    }
    action(1, piece);
  }
}

/// The lowest number in place of -inf.
at::Tensor finite(const at::Tensor& largest) {
  const auto lowest = largest.scalar_type() == at::kFloat ? static_cast<double>(std::numeric_limits<float>::lowest())
                                                          : std::numeric_limits<double>::lowest();
  return largest.clamp_min(lowest);
}

}  // namespace

at::Tensor log_sums(const at::Tensor& x, std::int64_t axis, const at::Tensor& powers) {
  const BelowAutograd guard;
  auto message = at::empty(with_extent(x, axis, 2), x.options());
  const auto largest = message.narrow(axis, 0, 1), sums = message.narrow(axis, 1, 1);
  if (x.numel() == 0) {
    largest.fill_(-std::numeric_limits<double>::infinity());
    sums.zero_();
  }
  in_pieces<4>(axis, {x, largest, sums, powers}, [](std::int64_t dim, std::array<at::Tensor, 4>& of) {
    auto& [piece, most, total, to] = of;
    at::amax_out(most, piece, dim, true);
    const auto shift = finite(most);
    to = to.defined() ? at::sub_out(to, piece, shift) : at::sub(piece, shift);
    at::sum_out(total, to.exp_(), dim, true);
  });
  return message;
}

at::Tensor log_sums_by_torch(const at::Tensor& x, std::int64_t axis) {
  const auto largest = x.size(axis) == 0
                           ? at::full(with_extent(x, axis, 1), -std::numeric_limits<double>::infinity(), x.options())
                           : x.detach().amax(axis, true);
  return at::cat({largest, (x - finite(largest)).exp().sum(axis, true)}, axis);
}

LogSum merged(const at::Tensor& messages, std::int64_t axis) {
  const auto pairs = messages.unflatten(axis, {-1, 2});
  const auto each = pairs.select(axis + 1, 0).detach();
  auto largest = finite(each.amax(axis, true));
  auto log_sum = (pairs.select(axis + 1, 1) * (each - largest).exp_()).sum(axis, true).log();
  return {std::move(largest), std::move(log_sum)};
}

at::Tensor scaled_powers(const at::Tensor& x, const at::Tensor& largest, const at::Tensor& scale, std::int64_t axis) {
  const BelowAutograd guard;
  auto result = at::empty(x.sizes(), x.options());
  in_pieces<4>(axis, {x, largest, scale, result}, [](std::int64_t, std::array<at::Tensor, 4>& of) {
    auto& [piece, shift, factor, to] = of;
    at::sub_out(to, piece, shift).exp_().mul_(factor);
  });
  return result;
}

void finish(Softmax kind, const at::Tensor& x, std::int64_t axis, const at::Tensor& powers, const at::Tensor& message,
            const LogSum& all) {
  const BelowAutograd guard;
  if (kind == Softmax::powers) {
    powers.mul_((message.narrow(axis, 0, 1) - all.largest).sub_(all.log_sum).exp_());
    return;
  }
  in_pieces<4>(axis, {x, powers, all.largest, all.log_sum}, [](std::int64_t, std::array<at::Tensor, 4>& of) {
    auto& [piece, to, largest, log_sum] = of;
    at::sub_out(to, piece, largest).sub_(log_sum);
  });
}

at::Tensor sums_of_gradient(Softmax kind, const at::Tensor& gradient, const at::Tensor& y, std::int64_t axis) {
  const BelowAutograd guard;
  if (kind == Softmax::logarithm) return gradient.sum(axis, true);
  auto sums = at::empty(with_extent(y, axis, 1), y.options());
  if (y.numel() == 0) sums.zero_();
  in_pieces<3>(axis, {gradient, y, sums},
               [](std::int64_t dim, std::array<at::Tensor, 3>& of) { at::sum_out(of[2], of[0] * of[1], dim, true); });
  return sums;
}

at::Tensor gradient_of_input(Softmax kind, const at::Tensor& gradient, const at::Tensor& y, const at::Tensor& sums,
                             std::int64_t axis) {
  const BelowAutograd guard;
  auto result = at::empty(y.sizes(), y.options());
  in_pieces<4>(axis, {gradient, y, sums, result}, [&](std::int64_t, std::array<at::Tensor, 4>& of) {
    auto& [slope, values, total, to] = of;
    if (kind == Softmax::powers) {
      at::sub_out(to, slope, total).mul_(values);
    } else {
      at::exp_out(to, values).mul_(total.neg()).add_(slope);
    }
  });
  return result;
}

}  // namespace distdl::kernels
