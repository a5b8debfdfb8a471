#include "operators/broadcast.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "agreement/tensor_checks.hpp"
#include "comm/bytes.hpp"
#include "kernels/memory.hpp"
#include "kernels/staging.hpp"
#include "operators/messages.hpp"
#include "operators/sum_reduce.hpp"
#include "operators/sum_route.hpp"
#include "operators/through_host.hpp"

namespace distdl::operators {

namespace {

// Between two ranks a root that sends at least so many bytes is the fastest in such blocks (measured on two cores that
// share memory).
constexpr std::size_t kLargeBytes = 2 << 20;
constexpr std::int64_t kBlockBytes = 1 << 20;

/// The parts in which a contiguous tensor travels between two ranks, the same on both.
std::vector<at::Tensor> blocks_of(const at::Tensor& x) {
  if (x.nbytes() < kLargeBytes) return {x};
  return x.view(-1).split(kBlockBytes / x.element_size());
}

}  // namespace

bool Broadcast::is_direct(const RootedGroup& group) const {
  const auto elements = static_cast<std::size_t>((group.is_root ? plan_->at_root : plan_->at_member).numel());
  return goes_directly(elements * c10::elementSize(plan_->at_root.dtype), group.communicator->size());
}

bool Broadcast::can_send_early(const at::Tensor& /*x*/) const {
  return std::all_of(plan_->groups.begin(), plan_->groups.end(),
                     [&](const RootedGroup& group) { return !group.communicator || is_direct(group); });
}

void Broadcast::send(const at::Tensor& x, Messages& messages) const {
  for (const auto& group : plan_->groups) {
    if (group.communicator && group.is_root && is_direct(group)) messages.send_to_others(packed(x), group.ranks);
  }
}

at::Tensor Broadcast::apply(const at::Tensor& x, EarlySend early) const {
  const bool keeps_own = std::any_of(plan_->groups.begin(), plan_->groups.end(),
                                     [](const RootedGroup& group) { return group.is_root && group.is_member; });
  const auto source = packed(x);
  const auto options = x.options().dtype(plan_->at_member.dtype);
  const auto arrived = keeps_own ? at::Tensor() : empty(plan_->at_member.sizes, options);
  bool is_filled = source.device() == x.device() && !source.is_alias_of(x);  // with a copy of x
  const auto own = !keeps_own ? at::Tensor() : is_filled ? source : empty(x.sizes(), x.options());
  Messages messages(id_->rank_set, early.tag);
  if (!early.sent) send(source, messages);
  const RootedGroup *as_root = nullptr, *as_member = nullptr;  // in a collective of MPI
  for (const auto& group : plan_->groups) {
    if (!group.communicator) continue;
    if (is_direct(group)) {
      if (!group.is_root) messages.receive(arrived, group.ranks.front());
      continue;
    }
    if (group.communicator->size() == 2) {  // a message takes less time than a collective
      if (!group.is_root) {
        for (const auto& block : blocks_of(arrived)) messages.receive(block, group.ranks.front());
        continue;
      }
      // Another rank reads huge pages, of which our memory is made, in half of the time. So a large tensor is sent from
      // the root's own copy, each block as soon as it is copied.
      const auto blocks = blocks_of(source);
      const bool fills = keeps_own && !is_filled && x.is_cpu() && blocks.size() > 1;
      const auto copies = fills ? blocks_of(own) : blocks;
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (fills) copies[i].copy_(blocks[i]);
        messages.send_to_others(copies[i], group.ranks);
      }
      is_filled |= fills;
      continue;
    }
    (group.is_root ? as_root : as_member) = &group;
  }
  const auto fill_own = [&] {
    if (keeps_own && !is_filled) own.copy_(resolved(x));
  };
  if (as_root || as_member) {
    const auto none = empty({0}, options);
    through_host(pieces_of(as_root ? source : none, plan_->in_pieces),
                 pieces_of(as_member ? arrived : none, plan_->in_pieces),
                 [&](const at::Tensor& from, const at::Tensor& to, std::int64_t i) {
                   comm::Requests requests;
                   // Nonblocking: the groups of different roots may form a ring in which each waits for the next.
                   if (as_root && (i == 0 || from.numel() > 0)) start_mpi(*as_root, from, requests);
                   if (as_member && (i == 0 || to.numel() > 0)) start_mpi(*as_member, to, requests);
                   if (i == 0) fill_own();
                   requests.wait_all();
                 });
  } else {
    fill_own();
  }
  messages.wait_all();
  return keeps_own ? own : arrived;
}

void Broadcast::start_mpi(const RootedGroup& group, const at::Tensor& x, comm::Requests& requests) {
  const comm::Bytes bytes(static_cast<std::int64_t>(x.nbytes()));
  requests.keep(x);
  comm::check(DISTDL_MPI_LARGE(MPI_Ibcast)(x.data_ptr(), bytes.count(), bytes.type(), group.root,
                                           group.communicator->handle(), requests.next()),
              "MPI_Ibcast");
}

OperatorPtr Broadcast::make_adjoint() const { return c10::make_intrusive<SumReduce>(id_, !is_adjoint_, plan_); }

BroadcastPrimitive::BroadcastPrimitive(MPI_Comm root, const Partition& x, const Partition& y, RootedOptions options)
    : Primitive("Broadcast", rank_set_of(root, {x, y}), x),
      options_(options),
      matching_(id_->name, {x.name, x.shape, options.transpose_src}, {y.name, y.shape, options.transpose_dest}),
      y_(place(id_->rank_set, y)),
      groups_(rooted_groups(id_->rank_set, matching_, x_, y_)) {}

OperatorPtr BroadcastPrimitive::plan(const GlobalStructure& structure) {
  const auto dtype = check_roles(*id_, x_, structure);
  auto plan = std::make_shared<RootedPlan>();
  plan->groups = groups_;
  plan->in_pieces = structure.uses_devices();
  plan->at_root.sizes = structure[my_rank()].sizes;
  if (y_.own) {
    plan->at_member.sizes = x_.of(structure, matching_.root_of(*y_.own)).sizes;
  } else {
    plan->at_member.sizes = zero_volume(structure[my_rank()], options_.preserve_batch);
  }
  // The same on all ranks, whatever the dtype of a zero-volume input: the adjoint's sum is in this dtype.
  plan->at_root.dtype = plan->at_member.dtype = dtype;
  return c10::make_intrusive<Broadcast>(id_, false, plan);
}

}  // namespace distdl::operators
