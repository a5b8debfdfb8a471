#include "operators/sum_reduce.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "agreement/tensor_checks.hpp"
#include "kernels/elements.hpp"
#include "kernels/memory.hpp"
#include "kernels/staging.hpp"
#include "operators/block_sum.hpp"
#include "operators/direct_sum.hpp"
#include "operators/through_host.hpp"

namespace distdl::operators {

SumRoute SumReduce::route(const RootedGroup& group) const {
  const auto& vector = group.is_root ? plan_->at_root : plan_->at_member;
  const auto size = static_cast<std::int64_t>(c10::elementSize(accumulate_type(plan_->at_root.dtype)));
  const auto bytes = vector.numel() * size;
  return route_of({.bytes = bytes,
                   .bytes_to_a_rank = bytes,
                   .ranks = group.communicator->size(),
                   .contributors = static_cast<int>(group.members.size())});
}

bool SumReduce::can_send_early(const at::Tensor& /*x*/) const {
  return std::all_of(plan_->groups.begin(), plan_->groups.end(),
                     [&](const RootedGroup& group) { return !group.communicator || route(group) == SumRoute::direct; });
}

void SumReduce::send(const at::Tensor& x, Messages& messages) const {
  for (const auto& group : plan_->groups) {
    if (!group.communicator || group.is_root || route(group) != SumRoute::direct) continue;
    messages.send(for_sending(converted(x, accumulate_type(plan_->at_root.dtype))), group.ranks.front());
  }
}

at::Tensor SumReduce::apply(const at::Tensor& x, EarlySend early) const {
  const auto own = contiguous(converted(x, sum_type(plan_->at_root.dtype).accumulate));
  const auto result = empty(plan_->at_root.sizes, own.options());
  through_host(pieces_of(own, plan_->in_pieces), pieces_of(result, plan_->in_pieces),
               [&](const at::Tensor& from, const at::Tensor& to, std::int64_t i) { add_up(from, to, early, i == 0); });
  return converted(result, plan_->at_root.dtype);
}

void SumReduce::add_up(const at::Tensor& own, const at::Tensor& result, EarlySend early, bool first) const {
  Messages messages(id_->rank_set, early.tag);
  if (first && !early.sent) send(own, messages);
  comm::Requests requests;
  requests.keep(own);
  requests.keep(result);
  std::vector<std::unique_ptr<BlockSum>> in_blocks;
  std::optional<DirectSum> directly;  // a rank is the root of one group at most
  for (const auto& group : plan_->groups) {
    const auto& vector = group.is_root ? result : own;
    if (!group.communicator || (!first && vector.numel() == 0)) continue;
    switch (route(group)) {
      case SumRoute::direct: {
        if (!group.is_root) break;
        std::vector<int> contributors;
        for (const auto member : group.members) contributors.push_back(group.ranks[static_cast<std::size_t>(member)]);
        directly.emplace(messages, contributors, own, result);
        break;
      }
      case SumRoute::blocks: {
        auto layout =
            rooted_layout(vector.numel(), static_cast<std::int64_t>(vector.nbytes()), group.members, group.root);
        const auto parts = group.is_member ? parts_of(own, layout) : std::vector<at::Tensor>{};
        in_blocks.push_back(std::make_unique<BlockSum>(*group.communicator, std::move(layout), parts, result));
        break;
      }
      default:
        start_mpi(group, own, result, requests);
    }
  }
  for (const auto& sums : in_blocks) sums->add();
  for (const auto& sums : in_blocks) sums->finish();
  messages.wait_all();
  if (directly) directly->add_up();
  for (const auto& group : plan_->groups) {
    if (!group.communicator) result.copy_(own);
  }
  requests.wait_all();
}

void SumReduce::start_mpi(const RootedGroup& group, const at::Tensor& own, const at::Tensor& result,
                          comm::Requests& requests) const {
  const auto sum = sum_type(own.scalar_type());
  const void* source = own.data_ptr();
  if (group.is_root && !group.is_member) {  // MPI's root contributes as well
    fill_neutral(result);
    source = MPI_IN_PLACE;
  }
  const auto elements = (group.is_root ? result : own).numel();
  comm::check(DISTDL_MPI_LARGE(MPI_Ireduce)(source, group.is_root ? result.data_ptr() : nullptr,
                                            sum.count_of(elements, "MPI_Ireduce"), sum.type, sum.op, group.root,
                                            group.communicator->handle(), requests.next()),
              "MPI_Ireduce");
}

OperatorPtr SumReduce::make_adjoint() const { return c10::make_intrusive<Broadcast>(id_, !is_adjoint_, plan_); }

SumReducePrimitive::SumReducePrimitive(MPI_Comm root, const Partition& x, const Partition& y, RootedOptions options)
    : Primitive("SumReduce", rank_set_of(root, {x, y}), x),
      options_(options),
      matching_(id_->name, {y.name, y.shape, options.transpose_dest}, {x.name, x.shape, options.transpose_src}),
      y_(place(id_->rank_set, y)),
      groups_(rooted_groups(id_->rank_set, matching_, y_, x_)) {}

OperatorPtr SumReducePrimitive::plan(const GlobalStructure& structure) {
  const auto dtype = check_roles(*id_, x_, structure);
  sum_type(dtype);  // throws here, on all ranks alike
  for (std::int64_t root = 0; root < y_.grid.size(); ++root) {
    check_equal_shapes(*id_, x_, matching_.members_of(root), structure);
  }
  auto plan = std::make_shared<RootedPlan>();
  plan->groups = groups_;
  plan->in_pieces = structure.uses_devices();
  plan->at_member.sizes = structure[my_rank()].sizes;
  if (y_.own) {
    plan->at_root.sizes = x_.of(structure, matching_.members_of(*y_.own).front()).sizes;
  } else {
    plan->at_root.sizes = zero_volume(structure[my_rank()], options_.preserve_batch);
  }
  plan->at_root.dtype = plan->at_member.dtype = dtype;
  return c10::make_intrusive<SumReduce>(id_, false, plan);
}

}  // namespace distdl::operators
