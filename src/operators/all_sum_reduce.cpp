#include "operators/all_sum_reduce.hpp"

#include <ATen/ATen.h>

#include "comm/requests.hpp"
#include "operators/block_sum.hpp"
#include "operators/elements.hpp"
#include "operators/memory.hpp"
#include "operators/sum_reduce.hpp"

namespace distdl::operators {

at::Tensor AllSumReduce::apply(const at::Tensor& x) const {
  if (!group_) return copy_of(x);
  const auto sum = sum_type(x.scalar_type());
  const auto mine = contiguous(converted(x, sum.accumulate));
  auto result = empty(mine.sizes(), mine.options());
  if (const auto everyone = all_ranks(*group_);
      BlockSum::pays(static_cast<std::int64_t>(mine.nbytes()), everyone.size())) {
    const auto layout = balanced_layout(mine.numel(), everyone, everyone);
    BlockSum sum_of_all(*group_, layout, parts_of(mine, layout), result);
    sum_of_all.add();
    sum_of_all.finish();
    return converted(result, x.scalar_type());
  }
  comm::Requests requests;
  requests.keep(mine);
  requests.keep(result);
  comm::check(
      DISTDL_MPI_LARGE(MPI_Iallreduce)(mine.data_ptr(), result.data_ptr(), sum.count_of(mine.numel(), "MPI_Iallreduce"),
                                       sum.type, sum.op, group_->handle(), requests.next()),
      "MPI_Iallreduce");
  requests.wait_all();
  return converted(result, x.scalar_type());
}

OperatorPtr AllSumReduce::adjoint() const { return c10::make_intrusive<AllSumReduce>(site_, !is_adjoint_, group_); }

AllSumReducePrimitive::AllSumReducePrimitive(MPI_Comm root, const Partition& x, const Axes& axes)
    : Primitive("AllSumReduce", scope_of(root, {x}), x),
      group_(site_->scope, x_, axes.resolve(site_->name, x_.grid.dim())) {}

OperatorPtr AllSumReducePrimitive::plan(const GlobalStructure& structure) {
  sum_type(check_roles(*site_, x_, structure));
  for (std::int64_t worker = 0; worker < x_.grid.size(); ++worker) {
    check_equal_shapes(*site_, x_, {x_.grid.ranks_along(worker, group_.axes).front(), worker}, structure);
  }
  return c10::make_intrusive<AllSumReduce>(site_, false, group_.communicator);
}

}  // namespace distdl::operators
