#include "autograd/loss.hpp"

#include <ATen/ATen.h>

#include "autograd/apply.hpp"

namespace distdl::autograd {

namespace {

/// 0, connected to a tensor: an empty sum over it.
at::Tensor zero_of(const at::Tensor& tensor) { return tensor.flatten().narrow(0, 0, 0).sum(); }

}  // namespace

at::Tensor loss_of_parts(const at::Tensor& numerator, const std::variant<double, at::Tensor>& denominator,
                         operators::Primitive* sum, at::ScalarType dtype, bool divides, bool has_part, bool is_first) {
  const auto wide = at::promote_types(dtype, at::kFloat);  // equal on all ranks, and not of half precision
  const auto options = numerator.options().dtype(wide);
  at::Tensor fraction;
  if (has_part) {
    const auto* const number = std::get_if<double>(&denominator);
    const auto count =
        number == nullptr ? std::get<at::Tensor>(denominator).to(options) : at::full({}, *number, options);
    fraction = at::stack({numerator.to(wide), count});
  } else {
    fraction = at::zeros({2}, options) + zero_of(numerator).to(wide);
  }
  const auto sums = sum == nullptr ? fraction.clone() : call_unseen(*sum, {fraction, ""});
  const auto total = sums.select(0, 0);
  // Detached, the denominator adds no node to second derivatives. -0.0 becomes 0.0, as in torch.
  const auto loss = ((divides ? total / sums.detach().select(0, 1) : total) + 0.0).to(dtype);
  return is_first ? loss : loss.detach() + zero_of(sums).to(dtype);
}

}  // namespace distdl::autograd
