// Region exchange: every rank holds a box of a global tensor and wants a box of it. Repartition, halo exchange and
// sliding windows differ only in the boxes.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "agreement/placement.hpp"
#include "geometry/exchange_plan.hpp"
#include "operators/linear_operator.hpp"

namespace distdl::operators {

class RegionExchange final : public LinearOperator {
 public:
  struct Message {
    int rank;              // of the set of ranks
    geometry::Box region;  // in this rank's tensor
  };
  /// One side of the exchange: this rank's tensor there, and the boxes of it that travel.
  struct Side {
    Structure local;
    std::vector<Message> messages;
    bool overlapping = false;  // some elements travel more than once: as a target, they are summed
  };
  using SidePtr = std::shared_ptr<const Side>;

  /// Elements of the target that nothing arrives for are filled. With `same_ranks` each rank has a block on both sides
  /// or on neither; then the result has the input's order of memory, contiguous or channels-last, also behind
  /// dimensions of size 1 that stand for workers who read the same. `in_pieces`: see
  /// Messages.
  RegionExchange(std::shared_ptr<const OperatorId> id, bool is_adjoint, SidePtr from, SidePtr to, double fill,
                 bool same_ranks, bool in_pieces)
      : LinearOperator(std::move(id), is_adjoint),
        from_(std::move(from)),
        to_(std::move(to)),
        fill_(fill),
        same_ranks_(same_ranks),
        in_pieces_(in_pieces) {}

  at::Tensor apply(const at::Tensor& x, EarlySend early) const override;
  bool can_send_early(const at::Tensor& x) const override;
  void send(const at::Tensor& x, Messages& messages) const override;
  OperatorPtr make_adjoint() const override;
  Traffic count_traffic(const at::Tensor& x) const override;
  Shape result_sizes(at::IntArrayRef /*sizes*/) const override { return to_->local.sizes; }

 private:
  SidePtr from_, to_;
  double fill_;
  bool same_ranks_, in_pieces_;
};

/// The exchange in which the workers of x, which hold `blocks`, send to the workers of y what the latter want.
class ExchangePrimitive : public Primitive {
 protected:
  ExchangePrimitive(std::string name, MPI_Comm root, const Partition& x, const Partition& y, std::vector<bool> periodic,
                    double fill, bool preserve_batch);

  /// The boxes that the workers of y want, for these blocks of x. Throws the same on all ranks.
  virtual geometry::Wanted wanted(const std::vector<geometry::Blocks>& blocks) const = 0;
  /// Whether every element goes to at most one worker.
  virtual bool unique() const { return false; }

  Placement y_;

 private:
  OperatorPtr plan(const GlobalStructure& structure) final;

  std::vector<bool> periodic_;
  double fill_;
  bool preserve_batch_;
};

}  // namespace distdl::operators
