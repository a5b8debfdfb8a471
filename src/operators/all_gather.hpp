// AllGather: every worker receives the tensor that its group along some axes of P_x holds in blocks. The adjoint is
// ReduceScatter.
#pragma once

#include "geometry/blocks.hpp"
#include "operators/axis_groups.hpp"

namespace distdl::operators {

/// How a whole tensor is cut into the blocks of a group, and the two tensors of this rank.
struct BlocksPlan {
  comm::CommunicatorPtr group;        // null when this rank is alone
  std::vector<int> ranks;             // of the group in the set of ranks
  std::vector<geometry::Box> blocks;  // in `whole`, by rank of the group
  Structure whole;
  Structure part;                 // this rank's block
  std::int64_t largest_part = 0;  // elements of the largest block
  bool in_pieces = false;         // see through_host()

  /// The number of pieces in which blocks travel, whose elements have this dtype.
  std::int64_t pieces(c10::ScalarType dtype) const;
  /// The elements of piece i of so many, of each block.
  std::vector<std::int64_t> sizes_of_piece(std::int64_t i, std::int64_t number) const;
};
using BlocksPlanPtr = std::shared_ptr<const BlocksPlan>;

/// The traffic of gathering blocks, or of scattering a sum.
Traffic traffic_of(const BlocksPlan& plan, const RankSet& rank_set, bool gathers);

class AllGather final : public LinearOperator {
 public:
  AllGather(std::shared_ptr<const OperatorId> id, bool is_adjoint, BlocksPlanPtr plan)
      : LinearOperator(std::move(id), is_adjoint), plan_(std::move(plan)) {}

  at::Tensor apply(const at::Tensor& x, EarlySend early) const override;
  bool can_send_early(const at::Tensor& x) const override;
  void send(const at::Tensor& x, Messages& messages) const override;
  OperatorPtr make_adjoint() const override;
  Traffic count_traffic(const at::Tensor& /*x*/) const override { return traffic_of(*plan_, id_->rank_set, true); }
  Shape result_sizes(at::IntArrayRef /*sizes*/) const override { return plan_->whole.sizes; }

 private:
  /// Gathers pieces of these sizes by MPI's collective.
  void gather_by_mpi(const at::Tensor& own, const at::Tensor& all, const std::vector<std::int64_t>& sizes) const;
  /// Copies piece i of all blocks to where these blocks stand one after the other.
  void put_piece(const at::Tensor& all, std::int64_t i, std::int64_t number, const at::Tensor& arrived) const;

  BlocksPlanPtr plan_;
};

class AllGatherPrimitive final : public Primitive {
 public:
  AllGatherPrimitive(MPI_Comm root, const Partition& x, const Axes& axes);

 private:
  OperatorPtr plan(const GlobalStructure& structure) override;

  AxisGroup group_;
};

/// The plan of this rank for the blocks of the grid's dimensions: along the group's axes it gathers all of them.
BlocksPlanPtr blocks_plan(const Placement& x, const AxisGroup& group, const std::vector<geometry::Blocks>& blocks,
                          c10::ScalarType dtype, bool in_pieces);

}  // namespace distdl::operators
