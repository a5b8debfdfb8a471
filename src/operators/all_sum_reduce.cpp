#include "operators/all_sum_reduce.hpp"

#include <ATen/ATen.h>

#include "comm/requests.hpp"
#include "geometry/blocks.hpp"
#include "operators/block_sum.hpp"
#include "operators/direct_sum.hpp"
#include "operators/elements.hpp"
#include "operators/memory.hpp"
#include "operators/staging.hpp"
#include "operators/tensor_checks.hpp"

namespace distdl::operators {

bool AllSumReduce::can_send_early(const at::Tensor& x) const {
  const auto bytes = static_cast<std::size_t>(x.numel()) * c10::elementSize(accumulate_type(x.scalar_type()));
  return !group_->communicator || goes_directly(bytes, group_->communicator->size());
}

void AllSumReduce::send(const at::Tensor& x, Messages& messages) const {
  if (!group_->communicator) return;
  messages.send_to_others(for_sending(converted(x, accumulate_type(x.scalar_type()))), group_->ranks);
}

at::Tensor AllSumReduce::apply(const at::Tensor& x, EarlySend early) const {
  if (!group_->communicator) return copy_of(x);
  const auto& group = *group_->communicator;
  const auto sum = sum_type(x.scalar_type());
  const auto mine = for_sending(converted(x, sum.accumulate));
  auto result = for_receiving(mine.sizes(), mine.options());
  const auto bytes = static_cast<std::int64_t>(mine.nbytes());
  if (can_send_early(x)) {
    Messages messages(id_->rank_set, early.tag);
    if (!early.sent) send(mine, messages);
    DirectSum sum_of_few(messages, group_->ranks, mine, result);
    messages.wait_all();
    sum_of_few.add_up();
    return converted(delivered(result, x.device()), x.scalar_type());
  }
  if (pays_to_add_twice(bytes, group)) {
    add_twice(group, mine, result);
    return converted(delivered(result, x.device()), x.scalar_type());
  }
  const auto everyone = all_ranks(group);
  if (BlockSum::pays(bytes, everyone.size())) {
    const auto layout = balanced_layout(mine.numel(), everyone, everyone);
    BlockSum sum_of_all(group, layout, parts_of(mine, layout), result);
    sum_of_all.add();
    sum_of_all.finish();
    return converted(delivered(result, x.device()), x.scalar_type());
  }
  comm::Requests requests;
  requests.keep(mine);
  requests.keep(result);
  comm::check(
      DISTDL_MPI_LARGE(MPI_Iallreduce)(mine.data_ptr(), result.data_ptr(), sum.count_of(mine.numel(), "MPI_Iallreduce"),
                                       sum.type, sum.op, group.handle(), requests.next()),
      "MPI_Iallreduce");
  requests.wait_all();
  return converted(delivered(result, x.device()), x.scalar_type());
}

Traffic AllSumReduce::traffic(const at::Tensor& x) const {
  Traffic traffic;
  const auto ranks = static_cast<std::int64_t>(group_->ranks.size());
  for (std::int64_t r = 0; group_->communicator && r < ranks; ++r) {
    if (r == group_->communicator->rank()) continue;
    const auto size = static_cast<std::int64_t>(x.element_size());
    if (can_send_early(x)) {  // see DirectSum
      traffic.exchange(group_->ranks[static_cast<std::size_t>(r)], x.numel() * size, x.numel() * size);
      continue;
    }
    // Each rank adds up its own part: it receives the addends of this part, and sends the sum.
    const auto theirs = geometry::balanced_block(x.numel(), ranks, r).size() * size;
    const auto mine = geometry::balanced_block(x.numel(), ranks, group_->communicator->rank()).size() * size;
    traffic.exchange(group_->ranks[static_cast<std::size_t>(r)], theirs + mine, theirs + mine);
  }
  return traffic;
}

OperatorPtr AllSumReduce::adjoint() const { return c10::make_intrusive<AllSumReduce>(id_, !is_adjoint_, group_); }

AllSumReducePrimitive::AllSumReducePrimitive(MPI_Comm root, const Partition& x, const Axes& axes)
    : Primitive("AllSumReduce", rank_set_of(root, {x}), x),
      group_(std::make_shared<AxisGroup>(id_->rank_set, x_, axes.resolve(id_->name, x_.grid.dim()))) {}

OperatorPtr AllSumReducePrimitive::plan(const GlobalStructure& structure) {
  sum_type(check_roles(*id_, x_, structure));
  for (std::int64_t worker = 0; worker < x_.grid.size(); ++worker) {
    check_equal_shapes(*id_, x_, {x_.grid.ranks_along(worker, group_->axes).front(), worker}, structure);
  }
  return c10::make_intrusive<AllSumReduce>(id_, false, group_);
}

}  // namespace distdl::operators
