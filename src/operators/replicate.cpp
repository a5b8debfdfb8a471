#include "operators/replicate.hpp"

#include <ATen/ATen.h>

#include "agreement/tensor_checks.hpp"
#include "kernels/elements.hpp"
#include "operators/all_sum_reduce.hpp"

namespace distdl::operators {

namespace {

/// The adjoint: every worker receives the sum of what comes back for all copies. Its result is a single element of a
/// single space again, of which each worker has a copy.
class SumOfCopies final : public AllSumReduce {
 public:
  using AllSumReduce::AllSumReduce;
  OperatorPtr make_adjoint() const override {
    return c10::make_intrusive<Replicate>(id_, !is_adjoint_, group_, in_pieces_);
  }
};

}  // namespace

at::Tensor Replicate::apply(const at::Tensor& x, EarlySend /*early*/) const { return at::alias(x); }

OperatorPtr Replicate::make_adjoint() const {
  return c10::make_intrusive<SumOfCopies>(id_, !is_adjoint_, group_, in_pieces_);
}

ReplicatePrimitive::ReplicatePrimitive(MPI_Comm root, const Partition& x)
    : Primitive("Replicate", rank_set_of(root, {x}), x),
      group_(std::make_shared<AxisGroup>(id_->rank_set, x_,
                                         Axes{"axes", {}, Shape{}}.resolve(id_->name, x_.grid.dim()))) {}

OperatorPtr ReplicatePrimitive::plan(const GlobalStructure& structure) {
  sum_type(check_roles(*id_, x_, structure));
  for (std::int64_t worker = 1; worker < x_.grid.size(); ++worker) {
    check_equal_shapes(*id_, x_, {0, worker}, structure);
  }
  return c10::make_intrusive<Replicate>(id_, false, group_, structure.uses_devices());
}

}  // namespace distdl::operators
