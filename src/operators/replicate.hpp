// Replicate: the identity for a tensor of which each worker has a copy. Its adjoint sums over the copies, so that each
// worker has the whole gradient.
#pragma once

#include "operators/axis_groups.hpp"

namespace distdl::operators {

/// The tensor is a single element of a single space, whichever ranks hold it: <x, x> counts it once. So the adjoint of
/// handing out the copies is the sum of what comes back for each of them.
class Replicate final : public LinearOperator {
 public:
  /// `in_pieces`: see through_host().
  Replicate(std::shared_ptr<const OperatorId> id, bool is_adjoint, std::shared_ptr<const AxisGroup> group,
            bool in_pieces)
      : LinearOperator(std::move(id), is_adjoint), group_(std::move(group)), in_pieces_(in_pieces) {}

  /// Unlike other operators' results, the result shares the memory of x: a parameter is not copied to be used.
  at::Tensor apply(const at::Tensor& x, EarlySend early) const override;
  OperatorPtr make_adjoint() const override;
  Traffic count_traffic(const at::Tensor& /*x*/) const override { return {}; }
  Shape result_sizes(at::IntArrayRef sizes) const override { return sizes.vec(); }

 private:
  std::shared_ptr<const AxisGroup> group_;
  bool in_pieces_;
};

class ReplicatePrimitive final : public Primitive {
 public:
  /// Among all workers of x.
  ReplicatePrimitive(MPI_Comm root, const Partition& x);

 private:
  OperatorPtr plan(const GlobalStructure& structure) override;

  std::shared_ptr<const AxisGroup> group_;
};

}  // namespace distdl::operators
