#include "operators/broadcast.hpp"

#include <ATen/ATen.h>

#include <algorithm>

#include "comm/requests.hpp"
#include "operators/elements.hpp"
#include "operators/memory.hpp"
#include "operators/messages.hpp"
#include "operators/staging.hpp"
#include "operators/sum_reduce.hpp"

namespace distdl::operators {

at::Tensor Broadcast::apply(const at::Tensor& x) const {
  const bool keeps_own = std::any_of(plan_->groups.begin(), plan_->groups.end(),
                                     [](const RootedGroup& group) { return group.is_root && group.is_member; });
  const auto source = for_sending(x);
  const auto arrived =
      keeps_own ? at::Tensor() : for_receiving(plan_->at_member.sizes, x.options().dtype(plan_->at_member.dtype));
  comm::Requests requests;
  requests.keep(source);
  requests.keep(arrived);
  // Nonblocking, because the groups of different roots may form a ring in which each waits for the next.
  for (const auto& group : plan_->groups) {
    if (!group.communicator) continue;
    const auto& buffer = group.is_root ? source : arrived;
    if (group.communicator->size() == 2) {  // a message takes less than a collective
      const int peer = 1 - group.communicator->rank();
      if (group.is_root) {
        send(buffer, peer, kInOrder, *group.communicator, requests);
      } else {
        receive(buffer, peer, kInOrder, *group.communicator, requests);
      }
      continue;
    }
    comm::check(DISTDL_MPI_LARGE(MPI_Ibcast)(buffer.data_ptr(), bytes_of(buffer, "MPI_Ibcast"), MPI_BYTE, group.root,
                                             group.communicator->handle(), requests.next()),
                "MPI_Ibcast");
  }
  const auto own = keeps_own ? copy_of(x) : at::Tensor();
  requests.wait_all();
  return keeps_own ? own : delivered(arrived, x.device());
}

OperatorPtr Broadcast::adjoint() const { return c10::make_intrusive<SumReduce>(site_, !is_adjoint_, plan_); }

BroadcastPrimitive::BroadcastPrimitive(MPI_Comm root, const Partition& x, const Partition& y, RootedOptions options)
    : Primitive("Broadcast", scope_of(root, {x, y}), x),
      options_(options),
      matching_(site_->name, {x.name, x.shape, options.transpose_src}, {y.name, y.shape, options.transpose_dest}),
      y_(place(site_->scope, y)),
      groups_(rooted_groups(site_->scope, matching_, x_, y_)) {}

OperatorPtr BroadcastPrimitive::plan(const GlobalStructure& structure) {
  const auto dtype = check_roles(*site_, x_, structure);
  auto plan = std::make_shared<RootedPlan>();
  plan->groups = groups_;
  plan->at_root.sizes = structure[my_rank()].sizes;
  if (y_.mine) {
    plan->at_member.sizes = x_.of(structure, matching_.one_of(*y_.mine)).sizes;
  } else {
    plan->at_member.sizes = zero_volume(structure[my_rank()], options_.preserve_batch);
  }
  // The same on all ranks, whatever the dtype of a zero-volume input: the adjoint's sum is in this dtype.
  plan->at_root.dtype = plan->at_member.dtype = dtype;
  return c10::make_intrusive<Broadcast>(site_, false, plan);
}

}  // namespace distdl::operators
