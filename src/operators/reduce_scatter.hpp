// ReduceScatter: the whole tensors of a group along some axes of P_x are summed, and every worker receives its block
// of the sum. The adjoint is AllGather.
#pragma once

#include "operators/all_gather.hpp"
#include "operators/sum_route.hpp"

namespace distdl::operators {

class ReduceScatter final : public LinearOperator {
 public:
  ReduceScatter(std::shared_ptr<const OperatorId> id, bool is_adjoint, BlocksPlanPtr plan)
      : LinearOperator(std::move(id), is_adjoint), plan_(std::move(plan)) {}

  at::Tensor apply(const at::Tensor& x, EarlySend early) const override;
  bool can_send_early(const at::Tensor& x) const override;
  void send(const at::Tensor& x, Messages& messages) const override;
  OperatorPtr make_adjoint() const override;
  Traffic count_traffic(const at::Tensor& /*x*/) const override { return traffic_of(*plan_, id_->rank_set, false); }
  Shape result_sizes(at::IntArrayRef /*sizes*/) const override { return plan_->part.sizes; }

 private:
  SumRoute route() const;
  /// The blocks of this rank's terms, ready to be sent: also its own block, or no elements for it.
  std::vector<at::Tensor> for_ranks(const at::Tensor& terms, bool with_own) const;
  void send_to_others(const std::vector<at::Tensor>& parts, Messages& messages) const;
  /// Adds up the group's tensors of all blocks; `result` is for this rank's block.
  void add_up(const at::Tensor& own, const at::Tensor& result, EarlySend early) const;
  /// The sum of large terms of a device, in so many pieces of each block.
  at::Tensor add_up_pieces(const at::Tensor& own, std::int64_t number, c10::ScalarType dtype) const;
  /// Adds up the parts of a vector, of which each rank keeps its own.
  void add_up_blocks(const std::vector<at::Tensor>& parts, const at::Tensor& result) const;
  void add_up_by_mpi(const at::Tensor& own, const at::Tensor& result) const;

  BlocksPlanPtr plan_;
};

/// Scatters in balanced blocks along the axes.
class ReduceScatterPrimitive final : public Primitive {
 public:
  ReduceScatterPrimitive(MPI_Comm root, const Partition& x, const Axes& axes);

 private:
  OperatorPtr plan(const GlobalStructure& structure) override;

  AxisGroup group_;
};

}  // namespace distdl::operators
