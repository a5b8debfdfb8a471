// Broadcast: every worker of P_x copies its tensor to the workers of P_y that match it. The adjoint is SumReduce.
#pragma once

#include "comm/requests.hpp"
#include "operators/rooted_groups.hpp"

namespace distdl::operators {

class Broadcast final : public LinearOperator {
 public:
  Broadcast(std::shared_ptr<const OperatorId> id, bool is_adjoint, RootedPlanPtr plan)
      : LinearOperator(std::move(id), is_adjoint), plan_(std::move(plan)) {}

  at::Tensor apply(const at::Tensor& x, EarlySend early) const override;
  bool can_send_early(const at::Tensor& x) const override;
  void send(const at::Tensor& x, Messages& messages) const override;
  OperatorPtr make_adjoint() const override;
  Traffic count_traffic(const at::Tensor& /*x*/) const override { return traffic_of(*plan_, id_->rank_set, false); }
  Shape result_sizes(at::IntArrayRef /*sizes*/) const override { return plan_->at_member.sizes; }

 private:
  /// Whether the tensors of a group travel as messages from the root to each other rank.
  bool is_direct(const RootedGroup& group) const;
  /// Starts MPI's collective.
  static void start_mpi(const RootedGroup& group, const at::Tensor& x, comm::Requests& requests);

  RootedPlanPtr plan_;
};

/// The options of Broadcast and SumReduce. P_x has the roots of a broadcast, and the members of a sum-reduction.
struct RootedOptions {
  bool transpose_src = false;
  bool transpose_dest = false;
  bool preserve_batch = true;
};

class BroadcastPrimitive final : public Primitive {
 public:
  BroadcastPrimitive(MPI_Comm root, const Partition& x, const Partition& y, RootedOptions options);

 private:
  OperatorPtr plan(const GlobalStructure& structure) override;

  RootedOptions options_;
  geometry::Matching matching_;
  Placement y_;
  std::vector<RootedGroup> groups_;
};

}  // namespace distdl::operators
