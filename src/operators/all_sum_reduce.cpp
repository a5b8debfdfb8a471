#include "operators/all_sum_reduce.hpp"

#include <ATen/ATen.h>

#include "agreement/tensor_checks.hpp"
#include "comm/requests.hpp"
#include "geometry/blocks.hpp"
#include "kernels/elements.hpp"
#include "kernels/memory.hpp"
#include "kernels/staging.hpp"
#include "operators/block_sum.hpp"
#include "operators/direct_sum.hpp"
#include "operators/through_host.hpp"

namespace distdl::operators {

SumRoute AllSumReduce::route(std::int64_t bytes) const {
  const int ranks = group_->communicator->size();
  return route_of(
      {.bytes = bytes, .bytes_to_a_rank = bytes, .ranks = ranks, .contributors = ranks, .all_receive = true});
}

bool AllSumReduce::can_send_early(const at::Tensor& x) const {
  const auto size = static_cast<std::int64_t>(c10::elementSize(accumulate_type(x.scalar_type())));
  return !group_->communicator || route(x.numel() * size) == SumRoute::direct;
}

void AllSumReduce::send(const at::Tensor& x, Messages& messages) const {
  if (!group_->communicator) return;
  messages.send_to_others(for_sending(converted(x, accumulate_type(x.scalar_type()))), group_->ranks);
}

at::Tensor AllSumReduce::apply(const at::Tensor& x, EarlySend early) const {
  if (!group_->communicator) return copy_of(x);
  const auto own = contiguous(converted(x, sum_type(x.scalar_type()).accumulate));
  const auto result = empty(own.sizes(), own.options());
  const auto by = route(static_cast<std::int64_t>(own.nbytes()));  // for all pieces, so that sums are the CPU's
  through_host(pieces_of(own, in_pieces_), pieces_of(result, in_pieces_),
               [&](const at::Tensor& from, const at::Tensor& to, std::int64_t /*i*/) { add_up(from, to, by, early); });
  return converted(result, x.scalar_type());
}

void AllSumReduce::add_up(const at::Tensor& own, const at::Tensor& result, SumRoute by, EarlySend early) const {
  const auto& group = *group_->communicator;
  switch (by) {
    case SumRoute::direct: {
      Messages messages(id_->rank_set, early.tag);
      if (!early.sent) send(own, messages);
      DirectSum sum(messages, group_->ranks, own, result);
      messages.wait_all();
      sum.add_up();
      return;
    }
    case SumRoute::twice:
      add_twice(group, own, result);
      return;
    case SumRoute::blocks: {
      const auto everyone = all_ranks(group);
      const auto layout = balanced_layout(own.numel(), everyone, everyone);
      BlockSum sum(group, layout, parts_of(own, layout), result);
      sum.add();
      sum.finish();
      return;
    }
    case SumRoute::mpi:
      break;
  }
  const auto sum = sum_type(own.scalar_type());
  comm::Requests requests;
  requests.keep(own);
  requests.keep(result);
  comm::check(
      DISTDL_MPI_LARGE(MPI_Iallreduce)(own.data_ptr(), result.data_ptr(), sum.count_of(own.numel(), "MPI_Iallreduce"),
                                       sum.type, sum.op, group.handle(), requests.next()),
      "MPI_Iallreduce");
  requests.wait_all();
}

Traffic AllSumReduce::count_traffic(const at::Tensor& x) const {
  Traffic traffic;
  const auto ranks = static_cast<std::int64_t>(group_->ranks.size());
  for (std::int64_t r = 0; group_->communicator && r < ranks; ++r) {
    if (r == group_->communicator->rank()) continue;
    const int peer = id_->rank_set.user_rank(group_->ranks[static_cast<std::size_t>(r)]);
    const auto size = static_cast<std::int64_t>(x.element_size());
    if (can_send_early(x)) {  // see DirectSum
      traffic.exchange(peer, x.numel() * size, x.numel() * size);
      continue;
    }
    // Each rank adds up its own part: it receives the addends of this part, and sends the sum.
    const auto theirs = geometry::balanced_block(x.numel(), ranks, r).size() * size;
    const auto own = geometry::balanced_block(x.numel(), ranks, group_->communicator->rank()).size() * size;
    traffic.exchange(peer, theirs + own, theirs + own);
  }
  return traffic;
}

OperatorPtr AllSumReduce::make_adjoint() const {
  return c10::make_intrusive<AllSumReduce>(id_, !is_adjoint_, group_, in_pieces_);
}

AllSumReducePrimitive::AllSumReducePrimitive(MPI_Comm root, const Partition& x, const Axes& axes)
    : Primitive("AllSumReduce", rank_set_of(root, {x}), x),
      group_(std::make_shared<AxisGroup>(id_->rank_set, x_, axes.resolve(id_->name, x_.grid.dim()))) {}

OperatorPtr AllSumReducePrimitive::plan(const GlobalStructure& structure) {
  sum_type(check_roles(*id_, x_, structure));
  for (std::int64_t worker = 0; worker < x_.grid.size(); ++worker) {
    check_equal_shapes(*id_, x_, {x_.grid.ranks_along(worker, group_->axes).front(), worker}, structure);
  }
  return c10::make_intrusive<AllSumReduce>(id_, false, group_, structure.uses_devices());
}

}  // namespace distdl::operators
