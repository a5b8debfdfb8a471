#include "autograd/loss.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

#include "autograd/apply.hpp"
#include "kernels/differentiation.hpp"
#include "kernels/torch_versions.hpp"

namespace distdl::autograd {

using torch::autograd::variable_list;

namespace {

/// 0, connected to a tensor: an empty sum over it.
at::Tensor zero_of(const at::Tensor& tensor) { return tensor.flatten().narrow(0, 0, 0).sum(); }

/// A numerator and a denominator from all workers, and what a rank makes of them.
struct Quotient {
  at::ScalarType dtype;
  bool divides, is_first;

  at::Tensor of(const at::Tensor& sums) const {
    const auto total = sums.select(0, 0);
    // Detached, the denominator adds no node to second derivatives. -0.0 becomes 0.0, as in torch.
    return ((divides ? total / sums.detach().select(0, 1) : total) + 0.0).to(dtype);
  }
};

/// The backward pass of a message from its numerator. Both nodes have derivatives, since they use torch's operations;
/// they are fewer than those that torch would record.
class MessageBackward final : public torch::autograd::Node {
 public:
  explicit MessageBackward(const at::Tensor& numerator)
      : Node(torch::autograd::collect_next_edges(numerator)), dtype_(numerator.scalar_type()) {}

  std::string name() const override { return "distdl::loss_of_parts message backward"; }

  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return variable_list(1);
    return {gradients[0].select(0, 0).to(dtype_)};
  }

 private:
  at::ScalarType dtype_;
};

class QuotientBackward final : public torch::autograd::Node {
 public:
  QuotientBackward(const at::Tensor& sums, const Quotient& quotient)
      : Node(torch::autograd::collect_next_edges(sums)), sums_(sums.detach()), quotient_(quotient) {}

  std::string name() const override { return "distdl::loss_of_parts backward"; }

  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return variable_list(1);
    const auto gradient = gradients[0].to(sums_.scalar_type());
    if (!quotient_.is_first) {
      const auto zeros = at::zeros_like(sums_);
      return {c10::GradMode::is_enabled() ? zeros + zero_of(gradient) : zeros};  // connected as the first worker's
    }
    const auto part = quotient_.divides ? gradient / sums_.select(0, 1) : gradient;
    return {at::stack({part, at::zeros_like(part)})};
  }

 private:
  at::Tensor sums_;
  Quotient quotient_;
};

}  // namespace

at::Tensor loss_of_parts(const at::Tensor& numerator, const std::variant<double, at::Tensor>& denominator,
                         operators::Primitive* sum, at::ScalarType dtype, bool divides, bool has_part, bool is_first) {
  const auto wide = at::promote_types(dtype, at::kFloat);  // equal on all ranks, and not of half precision
  const auto options = numerator.options().dtype(wide);
  const bool has_tangents = kernels::has_forward_derivatives();
  at::Tensor message;
  if (has_part) {
    const auto* const number = std::get_if<double>(&denominator);
    const auto part = has_tangents ? numerator : numerator.detach();
    message = at::stack({part.to(wide), number == nullptr ? std::get<at::Tensor>(denominator).detach().to(options)
                                                          : at::full({}, *number, options)});
    if (!has_tangents && numerator.requires_grad() && agreement::records_gradients()) {
      torch::autograd::set_history(message, make_node<MessageBackward>(numerator));
    }
  } else {
    message = at::zeros({2}, options) + zero_of(numerator).to(wide);
  }
  const auto sums = sum == nullptr ? message.clone() : call_unseen(*sum, {message, ""});
  const Quotient quotient{dtype, divides, is_first};
  if (has_tangents) {
    const auto value = quotient.of(sums);
    return is_first ? value : value.detach() + zero_of(sums).to(dtype);
  }
  auto value = quotient.of(sums.detach());
  if (sums.requires_grad() && agreement::records_gradients()) {
    torch::autograd::set_history(value, make_node<QuotientBackward>(sums, quotient));
  }
  return value;
}

}  // namespace distdl::autograd
