#include "operators/linear_operator.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <bit>

#include "base/hash.hpp"
#include "comm/watchdog.hpp"
#include "kernels/elements.hpp"
#include "kernels/memory.hpp"

namespace distdl::operators {

OperatorPtr LinearOperator::adjoint() const {
  auto result = make_adjoint();
  result->known_ = known_;
  return result;
}

const Traffic& LinearOperator::traffic(const at::Tensor& x) const {
  const auto by_size = static_cast<std::size_t>(std::countr_zero(static_cast<std::uint64_t>(x.element_size())));
  auto& traffic = known_->traffic.at(is_adjoint_).at(by_size);
  std::call_once(known_->counted.at(is_adjoint_).at(by_size), [&] { traffic = count_traffic(x); });
  return traffic;
}

Clone::Clone() : LinearOperator(std::make_shared<OperatorId>("Clone", RankSet{}), false) {}

at::Tensor Clone::apply(const at::Tensor& x, EarlySend /*early*/) const {
  // Any kind of tensor is right, for nothing is sent.
  return x.layout() == at::kStrided && !x.is_quantized() && !x.is_meta() ? copy_of(x) : x.clone();
}

OperatorPtr Clone::make_adjoint() const { return c10::make_intrusive<Clone>(); }

comm::SendEarly early_sender(const LinearOperator& linear_operator, const at::Tensor& x) {
  const auto& communicator = linear_operator.id().rank_set.communicator;
  if (!communicator || !communicator->spans_hosts() || comm::debugging()) return {};
  if (!x.is_cpu() || x._is_zerotensor() || !linear_operator.can_send_early(x)) return {};
  return [&linear_operator, &x](int tag, std::vector<int>& receivers) {
    const BelowAutograd guard;
    Messages messages(linear_operator.id().rank_set, tag, &receivers);
    linear_operator.send(x, messages);
  };
}

Primitive::Prepared Primitive::prepare(const Input& x, bool applied_next) {
  const auto structure = x.structure();
  comm::SendEarly send;
  // A rank that has no part of the input may pass another dtype, of no elements.
  if (applied_next && operator_ && structure.present && structure.error_kind == Structure::Error::none) {
    send = early_sender(*operator_, x.tensor);
  }
  const auto agreed = agreement_.agree_or_follow(structure, x.derivatives(), std::move(send));
  plan_if(agreed.change == Change::structure);
  const bool differentiable = c10::isFloatingType(dtype()) || c10::isComplexType(dtype());
  return {.linear_operator = operator_,
          .dtype = dtype(),
          .derivatives = differentiable ? agreed.derivatives : Derivatives{},
          .early = agreed.early};
}

comm::SendEarly Primitive::sender_within(const Input& x, std::int64_t generation) const {
  if (!operator_ || !x.is_usable() || agreement::in_transform()) return {};
  return agreement_.would_follow(generation, x.structure()) ? early_sender(*operator_, x.tensor) : comm::SendEarly{};
}

void Primitive::plan_if(bool changed) {
  if (!changed && operator_) return;
  operator_.reset();
  for (auto& policy : id_->early_sends) policy.restart();
  try {
    operator_ = plan(agreement_.structure());
  } catch (...) {
    agreement_.forget();  // so that the next call asks for the structure again, on every rank
    base::rethrow_of_all_ranks(my_rank() != 0);
  }
}

Primitive::Traced Primitive::trace(const Structure& structure) {
  if (!operator_ || agreement_.structure().at(my_rank()) != structure) {
    const auto agreed = agreement_.agree({&structure, 1}, {}, [] { return std::string(); }, Pass::trace);
    plan_if(agreed.change == Change::structure);
  }
  return {traced_[structure.sizes] = operator_->result_sizes(structure.sizes), dtype()};
}

Primitive::Prepared Primitive::prepare_traced(const Input& x, bool differentiated) {
  auto structure = x.structure();
  const auto traced = traced_.find(structure.sizes);
  const auto check_sizes = [&] {
    if (traced == traced_.end() || operator_->result_sizes(structure.sizes) == traced->second) return;
    structure.error_kind = Structure::Error::state;
    structure.error =
        "was compiled for a result of other sizes: tensors of other ranks have changed since; compile anew on all "
        "ranks (torch.compiler.reset)";
  };
  if (operator_ && agreement_.structure().at(my_rank()) == structure) check_sizes();
  const std::string own = differentiated ? "compiled, with gradients" : "compiled, without gradients";
  const auto agreed = agreement_.agree({&structure, 1}, {.value = base::hash_of(own)}, [&] { return own; });
  const bool changed = agreed.change == Change::structure;
  plan_if(changed);
  if (changed) {  // each rank knows the sizes of its own result by now, but not of the others
    check_sizes();
    throw_errors(*id_, agreement_.name(0), gather(id_->rank_set, {structure}).tensors.front());
  }
  return {.linear_operator = operator_, .dtype = dtype(), .derivatives = {}};
}

}  // namespace distdl::operators
