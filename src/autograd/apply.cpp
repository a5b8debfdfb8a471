#include "autograd/apply.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/input_metadata.h>

#include <optional>

namespace distdl::autograd {

using operators::LinearOperator;
using operators::OperatorPtr;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

namespace {

/// What is lazily conjugated or negated in torch is not so in memory.
at::Tensor in_memory(const at::Tensor& x) { return x.resolve_conj().resolve_neg(); }

/// A tensor of no elements that depends on what `node` computed, and passes no gradient on to it.
struct Tie : torch::autograd::Function<Tie> {
  static Variable forward(AutogradContext* /*context*/, const Variable& y) { return y.new_empty({0}); }
  static variable_list backward(AutogradContext* /*context*/, const variable_list& /*gradients*/) {
    return {Variable()};
  }

  static Variable to(const c10::intrusive_ptr<torch::autograd::Node>& node, const at::TensorOptions& options) {
    const auto result = at::empty({0}, options);
    torch::autograd::impl::set_gradient_edge(result, {node, 0});
    return Tie::apply(result);
  }
};

struct Apply : torch::autograd::Function<Apply> {
  /// `tie` has no influence. It makes this rank record the call where x alone would not.
  static Variable forward(AutogradContext* context, const Variable& x, const std::optional<at::Tensor>& /*tie*/,
                          const OperatorPtr& linear_operator) {
    static const auto nothing = at::empty({0});
    context->saved_data["operator"] = c10::IValue::make_capsule(linear_operator);
    context->save_for_backward({nothing});
    context->set_materialize_grads(false);
    return linear_operator->apply(in_memory(x));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    // Where activations are checkpointed, this computes them again, with all communication in it: before anything else.
    context->get_saved_variables();
    const auto adjoint =
        c10::static_intrusive_pointer_cast<LinearOperator>(context->saved_data["operator"].toCapsule())->adjoint();
    const bool differentiated = c10::GradMode::is_enabled();
    const bool any =
        operators::agree_on_backward(adjoint->site(), adjoint->is_adjoint(), gradients[0].defined(), differentiated);
    if (!any) return variable_list(3);
    const auto node = torch::autograd::get_current_node();
    const auto gradient = gradients[0].defined() ? gradients[0] : node->input_metadata(0).zeros_like();
    if (!differentiated) return {adjoint->apply(in_memory(gradient)), Variable(), Variable()};
    // Where only some ranks' gradients depend on this call, a derivative of the derivative would come through it there
    // and wait for ranks that have no reason to. Tied to it, the gradients of all ranks depend on it.
    return {Apply::apply(gradient, Tie::to(node, gradient.options()), adjoint), Variable(), Variable()};
  }
};

/// This rank's part of y = A x, where A* is to be applied in the backward pass.
at::Tensor record(const at::Tensor& x, const OperatorPtr& linear_operator) {
  if (x.requires_grad()) return Apply::apply(x, std::nullopt, linear_operator);
  // Nobody asks for this rank's gradient, but others need its part of A*.
  return Apply::apply(x, x.new_empty({0}).requires_grad_(true), linear_operator);
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
