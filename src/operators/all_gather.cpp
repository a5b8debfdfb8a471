#include "operators/all_gather.hpp"

#include <ATen/ATen.h>

#include <algorithm>

#include "comm/requests.hpp"
#include "operators/elements.hpp"
#include "operators/memory.hpp"
#include "operators/reduce_scatter.hpp"
#include "operators/region_copy.hpp"
#include "operators/staging.hpp"

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

}  // namespace

at::Tensor AllGather::apply(const at::Tensor& x) const {
  if (!plan_->group) return copy_of(x);
  const auto mine = for_sending(x);
  auto result = empty(plan_->whole.sizes, x.options());
  const bool direct = in_memory_order(result, plan_->blocks) && !is_staged(x.device());
  auto arrived = direct ? result : for_receiving({result.numel()}, x.options());

  std::vector<comm::Count> bytes;
  std::vector<comm::Displacement> offsets;
  std::int64_t offset = 0;
  for (const auto& box : plan_->blocks) {
    const auto size = geometry::volume(box) * static_cast<std::int64_t>(x.element_size());
    bytes.push_back(comm::count_of(size, "MPI_Iallgatherv"));
    offsets.push_back(comm::displacement_of(offset, "MPI_Iallgatherv"));
    offset += size;
  }
  comm::Requests requests;
  requests.keep(mine);
  requests.keep(arrived);
  comm::check(DISTDL_MPI_LARGE(MPI_Iallgatherv)(mine.data_ptr(), bytes_of(mine, "MPI_Iallgatherv"), MPI_BYTE,
                                                arrived.data_ptr(), bytes.data(), offsets.data(), MPI_BYTE,
                                                plan_->group->handle(), requests.next()),
              "MPI_Iallgatherv");
  requests.wait_all();
  if (direct) return result;
  std::int64_t start = 0;
  for (const auto& box : plan_->blocks) {
    const auto size = geometry::volume(box);
    copy_region(arrived.narrow(0, start, size).view(geometry::shape_of(box)), view_of(result, box));
    start += size;
  }
  return result;
}

OperatorPtr AllGather::adjoint() const { return c10::make_intrusive<ReduceScatter>(site_, !is_adjoint_, plan_); }

Traffic traffic_of(const BlocksPlan& plan, bool gathers) {
  Traffic traffic;
  for (std::size_t r = 0; plan.group && r < plan.blocks.size(); ++r) {
    if (static_cast<int>(r) == plan.group->rank()) continue;
    const auto mine = plan.part.nbytes();
    const auto theirs = geometry::volume(plan.blocks[r]) * static_cast<std::int64_t>(c10::elementSize(plan.part.dtype));
    traffic.exchange(plan.ranks[r], gathers ? mine : theirs, gathers ? theirs : mine);
  }
  return traffic;
}

AllGatherPrimitive::AllGatherPrimitive(MPI_Comm root, const Partition& x, const Axes& axes)
    : Primitive("AllGather", scope_of(root, {x}), x),
      group_(site_->scope, x_, axes.resolve(site_->name, x_.grid.dim())) {}

OperatorPtr AllGatherPrimitive::plan(const GlobalStructure& structure) {
  const auto dtype = check_roles(*site_, x_, structure);
  const auto blocks = check_blocks(*site_, x_, structure);
  return c10::make_intrusive<AllGather>(site_, false, blocks_plan(x_, group_, blocks, dtype));
}

at::Tensor view_of(const at::Tensor& whole, const geometry::Box& box) {
  auto sizes = whole.sizes().vec();
  auto offset = whole.storage_offset();
  for (std::size_t d = 0; d < box.size(); ++d) {
    sizes[d] = box[d].size();
    offset += box[d].start * whole.strides()[d];
  }
  return whole.sizes() == sizes ? whole : whole.as_strided(sizes, whole.strides(), offset);  // all dimensions at once
}

BlocksPlanPtr blocks_plan(const Placement& x, const AxisGroup& group, const std::vector<geometry::Blocks>& blocks,
                          c10::ScalarType dtype) {
  auto plan = std::make_shared<BlocksPlan>();
  plan->group = group.communicator;
  plan->ranks = group.ranks;
  plan->whole.dtype = plan->part.dtype = dtype;
  const auto here = x.grid.index(*x.mine);
  for (const auto worker : group.workers) {
    const auto index = x.grid.index(worker);
    geometry::Box box;
    for (std::size_t d = 0; d < blocks.size(); ++d) {
      const auto block = blocks[d].at(index[d]);
      const bool gathered = std::count(group.axes.begin(), group.axes.end(), static_cast<std::int64_t>(d)) > 0;
      box.push_back(gathered ? block : geometry::Interval{0, block.size()});
      if (worker == *x.mine) {
        plan->part.sizes.push_back(block.size());
        plan->whole.sizes.push_back(gathered ? blocks[d].extent() : block.size());
      }
    }
    plan->blocks.push_back(std::move(box));
  }
  return plan;
}

}  // namespace distdl::operators
