// AllSumReduce: every worker receives the sum over its group along some axes of P_x. It is its own adjoint.
#pragma once

#include "operators/axis_groups.hpp"
#include "operators/sum_route.hpp"

namespace distdl::operators {

class AllSumReduce : public LinearOperator {
 public:
  /// `in_pieces`: see through_host().
  AllSumReduce(std::shared_ptr<const OperatorId> id, bool is_adjoint, std::shared_ptr<const AxisGroup> group,
               bool in_pieces)
      : LinearOperator(std::move(id), is_adjoint), group_(std::move(group)), in_pieces_(in_pieces) {}

  at::Tensor apply(const at::Tensor& x, EarlySend early) const override;
  bool can_send_early(const at::Tensor& x) const override;
  void send(const at::Tensor& x, Messages& messages) const override;
  OperatorPtr make_adjoint() const override;
  Traffic count_traffic(const at::Tensor& x) const override;
  Shape result_sizes(at::IntArrayRef sizes) const override { return sizes.vec(); }

 protected:
  std::shared_ptr<const AxisGroup> group_;
  bool in_pieces_;

 private:
  SumRoute route(std::int64_t bytes) const;
  /// Adds up the group's vectors or pieces of them, which are contiguous, in memory that MPI can use.
  void add_up(const at::Tensor& own, const at::Tensor& result, SumRoute by, EarlySend early) const;
};

class AllSumReducePrimitive final : public Primitive {
 public:
  AllSumReducePrimitive(MPI_Comm root, const Partition& x, const Axes& axes);

 private:
  OperatorPtr plan(const GlobalStructure& structure) override;

  std::shared_ptr<const AxisGroup> group_;
};

}  // namespace distdl::operators
