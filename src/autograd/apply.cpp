#include "autograd/apply.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace distdl::autograd {

using operators::LinearOperator;
using operators::OperatorPtr;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

namespace {

struct Apply : torch::autograd::Function<Apply> {
  static Variable forward(AutogradContext* context, const Variable& x, const OperatorPtr& linear_operator) {
    context->saved_data["operator"] = c10::IValue::make_capsule(linear_operator);
    // What is lazily conjugated or negated in torch is not so in memory.
    return linear_operator->apply(x.resolve_conj().resolve_neg());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto linear_operator =
        c10::static_intrusive_pointer_cast<LinearOperator>(context->saved_data["operator"].toCapsule());
    const auto adjoint = linear_operator->adjoint();
    const auto& gradient = gradients[0];
    const bool mine = gradient.requires_grad() && c10::GradMode::is_enabled();
    const bool any = operators::agree_on_call(adjoint->site(), adjoint->is_adjoint(), mine);
    return {autograd::apply(adjoint, gradient, any), Variable()};
  }
};

}  // namespace

at::Tensor apply(const OperatorPtr& linear_operator, at::Tensor x, bool requires_grad) {
  if (requires_grad && !x.requires_grad()) {
    // Nobody asks for this rank's gradient, but the others' backward pass needs this rank's part of the adjoint.
    x = torch::autograd::isDifferentiableType(x.scalar_type()) ? x.detach() : at::empty(x.sizes(), at::kFloat);
    x.requires_grad_(true);
  }
  return Apply::apply(x, linear_operator);
}

at::Tensor call(operators::Primitive& primitive, const operators::Input& x) {
  if (!primitive.active()) {
    if (!x.tensor.defined()) throw operators::TypeError(primitive.name() + ": the input " + x.error);
    return x.tensor.clone();
  }
  const auto prepared = primitive.prepare(x);
  return apply(prepared.linear_operator, x.tensor, prepared.requires_grad);
}

}  // namespace distdl::autograd
