#include "operators/linear_operator.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "operators/elements.hpp"
#include "operators/memory.hpp"

namespace distdl::operators {

Clone::Clone() : LinearOperator(std::make_shared<Site>("Clone", Scope{}), false) {}

at::Tensor Clone::apply(const at::Tensor& x) const {
  // It may be whatever torch has, for it goes nowhere.
  return x.layout() == at::kStrided && !x.is_quantized() && !x.is_meta() ? copy_of(x) : x.clone();
}

OperatorPtr Clone::adjoint() const { return c10::make_intrusive<Clone>(); }

Structure Input::structure() const {
  Structure structure;
  const auto refuse = [&](Structure::Error kind, const std::string& why) {
    structure.error_kind = kind;
    structure.error = why;
    return structure;
  };
  if (!tensor.defined()) return refuse(error_kind, error);
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    return refuse(Structure::Error::type, std::string("is a ") + tensor.toString() + "; only strided tensors travel");
  }
  if (tensor.is_nested()) return refuse(Structure::Error::type, "is a nested tensor; only strided tensors travel");
  if (!can_travel(tensor.scalar_type())) {
    return refuse(Structure::Error::type, std::string("has dtype ") + c10::toString(tensor.scalar_type()) +
                                              ", of which torch can copy no values");
  }
  if (!tensor.has_storage()) {
    return refuse(
        Structure::Error::type,
        "has no memory of its own, as within the transforms of torch.func; these go through primitives, but not "
        "through other layers, nor through a backward pass (is_grads_batched, vectorize)");
  }
  structure.sizes = tensor.sizes().vec();
  structure.dtype = tensor.scalar_type();
  structure.device = tensor.device().type();
  if (tensor.is_meta()) return refuse(Structure::Error::type, "is on the meta device; it has no values");
  return structure;
}

Derivatives Input::derivatives() const {
  if (!tensor.defined()) return {};
  const auto& tangent = tensor._fw_grad(0);
  const bool requires_grad = tensor.requires_grad() || (tangent.defined() && tangent.requires_grad());
  return {requires_grad && records_gradients(), tangent.defined()};
}

Primitive::Prepared Primitive::prepare(const Input& x) {
  auto mine = x.structure();
  if (mine.error_kind == Structure::Error::none && structure_check()) {  // else the others would not hear of it
    mine.error = take_complaint();
    if (!mine.error.empty()) mine.error_kind = Structure::Error::state;
  }
  const auto agreed = agreement_.agree(mine, x.derivatives());
  plan_if(agreed.changed);
  const bool differentiable = c10::isFloatingType(dtype()) || c10::isComplexType(dtype());
  return {operator_, dtype(), differentiable ? agreed.derivatives : Derivatives{}};
}

void Primitive::plan_if(bool changed) {
  if (!changed && operator_) return;
  operator_.reset();
  try {
    operator_ = plan(agreement_.structure());
  } catch (...) {
    agreement_.forget();  // so that the next call asks for the structure again, on every rank
    throw;
  }
}

Primitive::Traced Primitive::trace(const Structure& mine) {
  if (!operator_ || agreement_.structure().at(my_rank()) != mine) {
    plan_if(agreement_.agree(mine, {}, "", Agreement::Purpose::trace).changed);
  }
  return {traced_[mine.sizes] = operator_->result_sizes(mine.sizes), dtype()};
}

Primitive::Prepared Primitive::prepare_traced(const Input& x, bool differentiated) {
  auto mine = x.structure();
  const auto traced = traced_.find(mine.sizes);
  const auto check_sizes = [&] {
    if (traced == traced_.end() || operator_->result_sizes(mine.sizes) == traced->second) return;
    mine.error_kind = Structure::Error::state;
    mine.error =
        "was compiled for a result of other sizes: tensors of other ranks have changed since; compile anew on all "
        "ranks "
        "(torch.compiler.reset)";
  };
  if (operator_ && agreement_.structure().at(my_rank()) == mine) check_sizes();
  const bool changed =
      agreement_.agree(mine, {}, differentiated ? "compiled, with gradients" : "compiled, without gradients").changed;
  plan_if(changed);
  if (changed) {  // now each rank knows what came of it here, but not on the others
    check_sizes();
    throw_errors(*site_, gather(site_->scope, mine));
  }
  return {operator_, dtype(), {}};
}

}  // namespace distdl::operators
