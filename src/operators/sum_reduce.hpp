// SumReduce: every worker of P_y receives the sum of the tensors of the workers of P_x that match it. The adjoint is
// Broadcast.
#pragma once

#include "comm/requests.hpp"
#include "operators/broadcast.hpp"
#include "operators/sum_route.hpp"

namespace distdl::operators {

class SumReduce final : public LinearOperator {
 public:
  SumReduce(std::shared_ptr<const OperatorId> id, bool is_adjoint, RootedPlanPtr plan)
      : LinearOperator(std::move(id), is_adjoint), plan_(std::move(plan)) {}

  at::Tensor apply(const at::Tensor& x, EarlySend early) const override;
  bool can_send_early(const at::Tensor& x) const override;
  void send(const at::Tensor& x, Messages& messages) const override;
  OperatorPtr make_adjoint() const override;
  Traffic count_traffic(const at::Tensor& /*x*/) const override { return traffic_of(*plan_, id_->rank_set, true); }
  Shape result_sizes(at::IntArrayRef /*sizes*/) const override { return plan_->at_root.sizes; }

 private:
  /// The way of the vectors of a group, and of their pieces.
  SumRoute route(const RootedGroup& group) const;
  /// Adds up the vectors of the groups or, after the `first`, pieces of those that have more: see through_host().
  void add_up(const at::Tensor& own, const at::Tensor& result, EarlySend early, bool first) const;
  void start_mpi(const RootedGroup& group, const at::Tensor& own, const at::Tensor& result,
                 comm::Requests& requests) const;

  RootedPlanPtr plan_;
};

class SumReducePrimitive final : public Primitive {
 public:
  SumReducePrimitive(MPI_Comm root, const Partition& x, const Partition& y, RootedOptions options);

 private:
  OperatorPtr plan(const GlobalStructure& structure) override;

  RootedOptions options_;
  geometry::Matching matching_;
  Placement y_;
  std::vector<RootedGroup> groups_;
};

}  // namespace distdl::operators
