#include "operators/all_gather.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

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
#include "operators/through_host.hpp"

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

std::int64_t total(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
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
  auto result = empty(plan_->whole.sizes, x.options());
  const bool direct = in_memory_order(result, plan_->blocks);
  const auto arrived = direct ? result : empty({result.numel()}, x.options());  // blocks, one after the other
  if (can_send_early(x)) {
    const auto own = for_sending(x);
    const auto host = is_staged(x.device()) ? for_receiving({result.numel()}, x.options()) : arrived;
    Messages messages(id_->rank_set, early.tag);
    if (!early.sent) send(own, messages);
    gather_directly(own, host, *plan_, messages);
    if (!host.is_same(arrived)) arrived.view(-1).copy_(host, /*non_blocking=*/true);
    return direct ? result : in_place(arrived, result, *plan_);
  }
  const auto number = plan_->pieces(x.scalar_type());
  const bool through_buffer = number > 1 || is_staged(x.device());
  through_host(cut_into(number, contiguous(x)), {empty({0}, x.options())},
               [&](const at::Tensor& own, const at::Tensor& /*to*/, std::int64_t i) {
                 const auto sizes = plan_->sizes_of_piece(i, number);
                 const auto all = through_buffer ? for_receiving({total(sizes)}, x.options()) : arrived;
                 gather_by_mpi(own, all, sizes);
                 if (through_buffer) put_piece(all, i, number, arrived.view(-1));
               });
  return direct ? result : in_place(arrived, result, *plan_);
}

void AllGather::put_piece(const at::Tensor& all, std::int64_t i, std::int64_t number, const at::Tensor& arrived) const {
  std::int64_t start = 0, from = 0;
  for (const auto& box : plan_->blocks) {
    const auto block = geometry::volume(box);
    const auto piece = geometry::balanced_block(block, number, i);
    const auto target = arrived.narrow(0, start + piece.start, piece.size());
    target.copy_(all.narrow(0, from, piece.size()), /*non_blocking=*/true);
    start += block;
    from += piece.size();
  }
}

void AllGather::gather_by_mpi(const at::Tensor& own, const at::Tensor& all,
                              const std::vector<std::int64_t>& sizes) const {
  comm::Requests requests;
  requests.keep(own);
  requests.keep(all);
  std::vector<comm::Count> bytes;
  std::vector<comm::Displacement> offsets;
  std::int64_t offset = 0;
  for (const auto elements : sizes) {
    const auto size = elements * static_cast<std::int64_t>(own.element_size());
    bytes.push_back(comm::count_of(size, "MPI_Iallgatherv"));
    offsets.push_back(comm::displacement_of(offset, "MPI_Iallgatherv"));
    offset += size;
  }
  comm::check(DISTDL_MPI_LARGE(MPI_Iallgatherv)(own.data_ptr(), bytes[static_cast<std::size_t>(plan_->group->rank())],
                                                MPI_BYTE, all.data_ptr(), bytes.data(), offsets.data(), MPI_BYTE,
                                                plan_->group->handle(), requests.next()),
              "MPI_Iallgatherv");
  requests.wait_all();
}

std::int64_t BlocksPlan::pieces(c10::ScalarType dtype) const {
  return in_pieces ? number_of_pieces(largest_part * static_cast<std::int64_t>(c10::elementSize(dtype))) : 1;
}

std::vector<std::int64_t> BlocksPlan::sizes_of_piece(std::int64_t i, std::int64_t number) const {
  std::vector<std::int64_t> sizes;
  for (const auto& box : blocks) sizes.push_back(geometry::balanced_block(geometry::volume(box), number, i).size());
  return sizes;
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
  return c10::make_intrusive<AllGather>(id_, false, blocks_plan(x_, group_, blocks, dtype, structure.uses_devices()));
}

BlocksPlanPtr blocks_plan(const Placement& x, const AxisGroup& group, const std::vector<geometry::Blocks>& blocks,
                          c10::ScalarType dtype, bool in_pieces) {
  auto plan = std::make_shared<BlocksPlan>();
  plan->in_pieces = in_pieces;
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
