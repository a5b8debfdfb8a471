#include "operators/linear_operator.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "operators/elements.hpp"
#include "operators/memory.hpp"

namespace distdl::operators {

Clone::Clone() : LinearOperator(std::make_shared<Site>("Clone", Scope{}), false) {}

at::Tensor Clone::apply(const at::Tensor& x) const {
  // It may be whatever torch has, for it goes nowhere.
  return x.layout() == at::kStrided && x.is_cpu() && !x.is_quantized() ? copy_of(x) : x.clone();
}

OperatorPtr Clone::adjoint() const { return c10::make_intrusive<Clone>(); }

Structure Input::structure() const {
  Structure structure;
  const auto refuse = [&](Structure::Error kind, const std::string& why) {
    structure.error_kind = kind;
    structure.error = why;
    return structure;
  };
  if (!tensor.defined()) return refuse(Structure::Error::type, error);
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    return refuse(Structure::Error::type, std::string("is a ") + tensor.toString() + "; only strided tensors travel");
  }
  if (tensor.is_nested()) return refuse(Structure::Error::type, "is a nested tensor; only strided tensors travel");
  if (!can_travel(tensor.scalar_type())) {
    return refuse(Structure::Error::type, std::string("has dtype ") + c10::toString(tensor.scalar_type()) +
                                              ", of which torch can copy no values");
  }
  if (!tensor.has_storage()) {
    return refuse(Structure::Error::type, "has no memory of its own; the transforms of torch.func are not supported");
  }
  if (tensor._fw_grad(0).defined()) {
    return refuse(Structure::Error::type, "has a forward-mode derivative, which is not supported");
  }
  structure.sizes = tensor.sizes().vec();
  structure.dtype = tensor.scalar_type();
  structure.device = tensor.device().type();
  if (!tensor.device().is_cpu()) {
    return refuse(Structure::Error::type, "is on " + tensor.device().str() + "; tensors have to be on the CPU");
  }
  return structure;
}

bool Input::requires_grad() const { return tensor.defined() && tensor.requires_grad() && records_gradients(); }

Primitive::Prepared Primitive::prepare(const Input& x) {
  auto mine = x.structure();
  if (mine.error_kind == Structure::Error::none) {
    mine.error = take_complaint();
    if (!mine.error.empty()) mine.error_kind = Structure::Error::state;
  }
  const auto agreed = agreement_.agree(mine, x.requires_grad());
  if (agreed.changed || !operator_) {
    operator_.reset();
    try {
      operator_ = plan(agreement_.structure());
    } catch (...) {
      agreement_.forget();  // so that the next call asks for the structure again, on every rank
      throw;
    }
  }
  const auto dtype = x_.of(agreement_.structure(), 0).dtype;
  const bool differentiable = c10::isFloatingType(dtype) || c10::isComplexType(dtype);
  return {operator_, dtype, agreed.requires_grad && differentiable};
}

}  // namespace distdl::operators
