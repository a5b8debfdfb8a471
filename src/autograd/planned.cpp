#include "autograd/planned.hpp"

#include <ATen/ATen.h>

#include <stdexcept>
#include <utility>

#include "autograd/nonblocking.hpp"
#include "base/text.hpp"

namespace distdl::autograd {

PlannedOperator PlannedOperator::of(operators::Primitive& primitive, const agreement::Input& x) {
  if (!primitive.active()) throw std::invalid_argument(primitive.name() + ": this rank is in none of the partitions");
  const auto lock = primitive.lock();
  auto prepared = primitive.prepare(x, false);
  return {std::move(prepared.linear_operator), x.tensor.sizes().vec(), prepared.dtype};
}

at::Tensor PlannedOperator::apply(const at::Tensor& x) const {
  check(x);
  const auto lock = operator_->id().rank_set.lock();
  return autograd::apply(operator_, x.detach());
}

std::unique_ptr<Started> PlannedOperator::start(const at::Tensor& x) const {
  check(x);
  const auto lock = operator_->id().rank_set.lock();
  return std::make_unique<Started>(operator_->name(), autograd::start(operator_, x.detach(), false), true);
}

PlannedOperator PlannedOperator::adjoint() const {
  return {operator_->adjoint(), operator_->result_sizes(sizes_), dtype_};
}

void PlannedOperator::check(const at::Tensor& x) const {
  if (x.sizes() == at::IntArrayRef(sizes_) && x.scalar_type() == dtype_) return;
  throw std::invalid_argument(operator_->name() + ": a tensor of shape " + base::text(x.sizes().vec()) + " (" +
                              c10::toString(x.scalar_type()) + ") meets an operator that was planned for " +
                              base::text(sizes_) + " (" + c10::toString(dtype_) + ")");
}

}  // namespace distdl::autograd
