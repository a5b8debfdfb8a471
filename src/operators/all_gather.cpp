#include "operators/all_gather.hpp"

#include <ATen/ATen.h>

#include <algorithm>

#include "agreement/tensor_checks.hpp"
#include "comm/requests.hpp"
#include "kernels/box_view.hpp"
#include "kernels/elements.hpp"
#include "kernels/memory.hpp"
#include "kernels/region_copy.hpp"
#include "kernels/staging.hpp"
#include "operators/messages.hpp"
#include "operators/reduce_scatter.hpp"
#include "operators/sum_route.hpp"

namespace distdl::operators {

namespace {

/// Whether the blocks follow each other in the memory of a contiguous `whole`, so that they can arrive in place.
bool in_memory_order(const at::Tensor& whole, const std::vector<geometry::Box>& blocks) {
  auto next = whole.storage_offset();
  return std::all_of(blocks.begin(), blocks.end(), [&](const geometry::Box& box) {
    const auto block = view_of(whole, box);
    const bool follows = block.numel() == 0 || (block.is_contiguous() && block.storage_offset() == next);
    next += block.numel();
    return follows;
  });
}

/// Receives the blocks of all others, one after the other.
void gather_directly(const at::Tensor& own, const at::Tensor& arrived, const BlocksPlan& plan, Messages& messages) {
  const auto blocks = arrived.view(-1);
  std::int64_t start = 0;
  for (int rank = 0; rank < plan.group->size(); ++rank) {
    const auto size = geometry::volume(plan.blocks[static_cast<std::size_t>(rank)]);
    const auto block = blocks.narrow(0, start, size);
    start += size;
    if (rank == plan.group->rank()) {
      block.copy_(own.view(-1));
    } else {
      messages.receive(block, plan.ranks[static_cast<std::size_t>(rank)]);
    }
  }
  messages.wait_all();
}

/// Blocks that arrived one after the other, each where it belongs.
at::Tensor in_place(const at::Tensor& arrived, const at::Tensor& result, const BlocksPlan& plan) {
  std::int64_t start = 0;
  for (const auto& box : plan.blocks) {
    const auto size = geometry::volume(box);
    copy_region(arrived.narrow(0, start, size).view(geometry::shape_of(box)), view_of(result, box));
    start += size;
  }
  return result;
}

}  // namespace

bool AllGather::can_send_early(const at::Tensor& /*x*/) const {
  // Like its adjoint, which adds up in this dtype.
  const auto bytes =
      static_cast<std::size_t>(plan_->largest_part) * c10::elementSize(accumulate_type(plan_->part.dtype));
  return !plan_->group || goes_directly(bytes, plan_->group->size());
}

void AllGather::send(const at::Tensor& x, Messages& messages) const {
  if (plan_->group) messages.send_to_others(for_sending(x), plan_->ranks);
}

at::Tensor AllGather::apply(const at::Tensor& x, EarlySend early) const {
  if (!plan_->group) return copy_of(x);
  const auto own = for_sending(x);
  auto result = empty(plan_->whole.sizes, x.options());
  const bool direct = in_memory_order(result, plan_->blocks) && !is_staged(x.device());
  auto arrived = direct ? result : for_receiving({result.numel()}, x.options());

  if (can_send_early(x)) {
    Messages messages(id_->rank_set, early.tag);
    if (!early.sent) send(own, messages);
    gather_directly(own, arrived, *plan_, messages);
    return direct ? result : in_place(arrived, result, *plan_);
  }
  comm::Requests requests;
  requests.keep(own);
  requests.keep(arrived);
  std::vector<comm::Count> bytes;
  std::vector<comm::Displacement> offsets;
  std::int64_t offset = 0;
  for (const auto& box : plan_->blocks) {
    const auto size = geometry::volume(box) * static_cast<std::int64_t>(x.element_size());
    bytes.push_back(comm::count_of(size, "MPI_Iallgatherv"));
    offsets.push_back(comm::displacement_of(offset, "MPI_Iallgatherv"));
    offset += size;
  }
  comm::check(DISTDL_MPI_LARGE(MPI_Iallgatherv)(own.data_ptr(), bytes[static_cast<std::size_t>(plan_->group->rank())],
                                                MPI_BYTE, arrived.data_ptr(), bytes.data(), offsets.data(), MPI_BYTE,
                                                plan_->group->handle(), requests.next()),
              "MPI_Iallgatherv");
  requests.wait_all();
  return direct ? result : in_place(arrived, result, *plan_);
}

OperatorPtr AllGather::make_adjoint() const { return c10::make_intrusive<ReduceScatter>(id_, !is_adjoint_, plan_); }

Traffic traffic_of(const BlocksPlan& plan, const RankSet& rank_set, bool gathers) {
  Traffic traffic;
  for (std::size_t r = 0; plan.group && r < plan.blocks.size(); ++r) {
    if (static_cast<int>(r) == plan.group->rank()) continue;
    const auto own = plan.part.nbytes();
    const auto theirs = geometry::volume(plan.blocks[r]) * static_cast<std::int64_t>(c10::elementSize(plan.part.dtype));
    traffic.exchange(rank_set.user_rank(plan.ranks[r]), gathers ? own : theirs, gathers ? theirs : own);
  }
  return traffic;
}

AllGatherPrimitive::AllGatherPrimitive(MPI_Comm root, const Partition& x, const Axes& axes)
    : Primitive("AllGather", rank_set_of(root, {x}), x),
      group_(id_->rank_set, x_, axes.resolve(id_->name, x_.grid.dim())) {}

OperatorPtr AllGatherPrimitive::plan(const GlobalStructure& structure) {
  const auto dtype = check_roles(*id_, x_, structure);
  const auto blocks = check_blocks(*id_, x_, structure);
  return c10::make_intrusive<AllGather>(id_, false, blocks_plan(x_, group_, blocks, dtype));
}

BlocksPlanPtr blocks_plan(const Placement& x, const AxisGroup& group, const std::vector<geometry::Blocks>& blocks,
                          c10::ScalarType dtype) {
  auto plan = std::make_shared<BlocksPlan>();
  plan->group = group.communicator;
  plan->ranks = group.ranks;
  plan->whole.dtype = plan->part.dtype = dtype;
  const auto here = x.grid.index(*x.own);
  for (const auto worker : group.workers) {
    const auto index = x.grid.index(worker);
    geometry::Box box;
    for (std::size_t d = 0; d < blocks.size(); ++d) {
      const auto block = blocks[d].at(index[d]);
      const bool gathered = std::count(group.axes.begin(), group.axes.end(), static_cast<std::int64_t>(d)) > 0;
      box.push_back(gathered ? block : geometry::Interval{0, block.size()});
      if (worker == *x.own) {
        plan->part.sizes.push_back(block.size());
        plan->whole.sizes.push_back(gathered ? blocks[d].extent() : block.size());
      }
    }
    plan->largest_part = std::max(plan->largest_part, geometry::volume(box));
    plan->blocks.push_back(std::move(box));
  }
  return plan;
}

}  // namespace distdl::operators
