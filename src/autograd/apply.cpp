#include "autograd/apply.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>

#include "operators/elements.hpp"

namespace distdl::autograd {

using operators::LinearOperator;
using operators::OperatorPtr;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

namespace {

at::Tensor neutral(const at::Tensor& x) {
  auto number = at::empty({}, x.options());
  operators::fill_neutral(number);
  return number;
}

/// What is lazily conjugated or negated in torch is not so in memory.
at::Tensor in_memory(const at::Tensor& x) { return x.resolve_conj().resolve_neg(); }

/// A number that depends on all of x by name and on nothing by value. Added to x it changes no bit: it is -0.0.
///
/// It keeps the graphs of all ranks alike: each derivative depends on all that came before it. Where that were so on
/// some ranks only, a derivative of the derivative would communicate there, and wait for ranks that have no reason to.
struct Tie : torch::autograd::Function<Tie> {
  static Variable forward(AutogradContext* context, const Variable& x) {
    context->saved_data["sizes"] = x.sizes();
    return neutral(x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {Tie::apply(gradients[0]).expand(context->saved_data["sizes"].toIntVector())};
  }
};

/// A tensor that is no argument of a Function: it is neither differentiated nor changed.
struct Aside {
  at::Tensor tensor;
};

struct Apply : torch::autograd::Function<Apply> {
  /// `tie` is an input that has no influence: it makes all ranks record the call where only some ranks' x requires
  /// grad. `kept` ties the backward pass to what comes before the call.
  static Variable forward(AutogradContext* context, const Variable& x, const std::optional<at::Tensor>& tie,
                          const Aside& kept, const OperatorPtr& linear_operator) {
    context->saved_data["tied"] = tie.has_value();
    context->saved_data["operator"] = c10::IValue::make_capsule(linear_operator);
    if (kept.tensor.defined()) context->save_for_backward({kept.tensor});
    return linear_operator->apply(in_memory(x));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    // Before anything else: where activations are checkpointed, this computes them again, with all communication in it.
    const auto kept = context->get_saved_variables().at(0);
    const auto linear_operator =
        c10::static_intrusive_pointer_cast<LinearOperator>(context->saved_data["operator"].toCapsule());
    const auto adjoint = linear_operator->adjoint();
    const auto& gradient = gradients[0];
    const bool differentiated = c10::GradMode::is_enabled();
    operators::agree_on_backward(adjoint->site(), adjoint->is_adjoint(), differentiated);
    const auto to_tie = context->saved_data["tied"].toBool() ? Tie::apply(gradient) : Variable();
    if (!differentiated) return {adjoint->apply(in_memory(gradient)), to_tie, Variable(), Variable()};
    const Aside next{gradient.requires_grad() ? kept + Tie::apply(gradient) : kept};
    return {Apply::apply(gradient, kept, next, adjoint), to_tie, Variable(), Variable()};
  }
};

/// This rank's part of y = A x, where A* is to be applied in the backward pass.
at::Tensor record(const at::Tensor& x, const OperatorPtr& linear_operator) {
  if (x.requires_grad()) return Apply::apply(x, std::nullopt, Aside{Tie::apply(x)}, linear_operator);
  // Nobody asks for this rank's gradient, but others need its part of A*.
  const auto leaf = neutral(x).requires_grad_(true);
  return Apply::apply(x, leaf, Aside{leaf}, linear_operator);
}

}  // namespace

at::Tensor call(operators::Primitive& primitive, const operators::Input& x) {
  if (!primitive.active()) {
    if (!x.tensor.defined()) throw operators::TypeError(primitive.name() + ": the input " + x.error);
    return pass_through(x.tensor);
  }
  const auto prepared = primitive.prepare(x);
  const auto mine = x.tensor.to(prepared.dtype);
  return prepared.requires_grad ? record(mine, prepared.linear_operator)
                                : prepared.linear_operator->apply(in_memory(mine));
}

at::Tensor pass_through(const at::Tensor& x) {
  if (!x.requires_grad() || !c10::GradMode::is_enabled()) return x.clone();
  static const OperatorPtr outside = c10::make_intrusive<operators::Clone>();
  return record(x, outside);
}

}  // namespace distdl::autograd
