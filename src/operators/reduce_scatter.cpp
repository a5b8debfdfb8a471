#include "operators/reduce_scatter.hpp"

#include <ATen/ATen.h>

#include <numeric>

#include "agreement/tensor_checks.hpp"
#include "comm/requests.hpp"
#include "kernels/box_view.hpp"
#include "kernels/elements.hpp"
#include "kernels/memory.hpp"
#include "kernels/region_copy.hpp"
#include "kernels/staging.hpp"
#include "operators/block_sum.hpp"
#include "operators/direct_sum.hpp"
#include "operators/through_host.hpp"

namespace distdl::operators {

SumRoute ReduceScatter::route() const {
  const auto size = static_cast<std::int64_t>(c10::elementSize(accumulate_type(plan_->part.dtype)));
  const int ranks = plan_->group->size();
  return route_of({.bytes = plan_->whole.numel() * size,
                   .bytes_to_a_rank = plan_->largest_part * size,
                   .ranks = ranks,
                   .contributors = ranks});
}

bool ReduceScatter::can_send_early(const at::Tensor& /*x*/) const {
  return !plan_->group || route() == SumRoute::direct;
}

void ReduceScatter::send(const at::Tensor& x, Messages& messages) const {
  if (!plan_->group) return;
  send_to_others(for_ranks(converted(x, accumulate_type(x.scalar_type())), false), messages);
}

std::vector<at::Tensor> ReduceScatter::for_ranks(const at::Tensor& terms, bool with_own) const {
  std::vector<at::Tensor> parts;
  for (std::size_t r = 0; r < plan_->blocks.size(); ++r) {
    const bool is_own = static_cast<int>(r) == plan_->group->rank();
    parts.push_back(is_own && !with_own ? empty({0}, terms.options()) : view_of(terms, plan_->blocks[r]));
  }
  return for_sending(std::move(parts));
}

void ReduceScatter::send_to_others(const std::vector<at::Tensor>& parts, Messages& messages) const {
  for (std::size_t r = 0; r < parts.size(); ++r) {
    if (static_cast<int>(r) != plan_->group->rank()) messages.send(parts[r], plan_->ranks[r]);
  }
}

at::Tensor ReduceScatter::apply(const at::Tensor& x, EarlySend early) const {
  if (!plan_->group) return copy_of(x);
  const auto own = converted(x, sum_type(x.scalar_type()).accumulate);
  const auto number = route() == SumRoute::blocks ? plan_->pieces(own.scalar_type()) : 1;
  if (number > 1) return add_up_pieces(own, number, x.scalar_type());
  const auto result = for_receiving(plan_->part.sizes, own.options());
  add_up(own, result, early);
  return delivered_sum(result, x.device(), x.scalar_type());
}

at::Tensor ReduceScatter::add_up_pieces(const at::Tensor& own, std::int64_t number, c10::ScalarType dtype) const {
  std::vector<at::Tensor> pieces;  // each of all blocks
  for (std::int64_t i = 0; i < number; ++i) {
    const auto sizes = plan_->sizes_of_piece(i, number);
    pieces.push_back(empty({std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})}, own.options()));
  }
  std::vector<std::int64_t> filled(pieces.size());
  for (const auto& box : plan_->blocks) {
    const auto block = cut_into(number, contiguous(view_of(own, box)));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      pieces[i].narrow(0, filled[i], block[i].numel()).copy_(block[i]);
      filled[i] += block[i].numel();
    }
  }
  const auto result = empty(plan_->part.sizes, own.options());
  through_host(pieces, cut_into(number, result), [&](const at::Tensor& from, const at::Tensor& to, std::int64_t i) {
    add_up_blocks(from.split_with_sizes(plan_->sizes_of_piece(i, number)), to);
  });
  return converted(result, dtype);
}

void ReduceScatter::add_up_blocks(const std::vector<at::Tensor>& parts, const at::Tensor& result) const {
  SumLayout layout{.contributors = all_ranks(*plan_->group), .offsets = {0}, .receivers = {}};
  for (const auto& part : parts) layout.offsets.push_back(layout.offsets.back() + part.numel());
  BlockSum sum(*plan_->group, std::move(layout), parts, result);
  sum.add();
  sum.finish();
}

void ReduceScatter::add_up(const at::Tensor& own, const at::Tensor& result, EarlySend early) const {
  switch (route()) {
    case SumRoute::direct: {
      Messages messages(id_->rank_set, early.tag);
      const auto me = static_cast<std::size_t>(plan_->group->rank());
      const auto parts = early.sent ? std::vector<at::Tensor>{} : for_ranks(own, true);
      send_to_others(parts, messages);
      const auto block = early.sent ? for_sending(view_of(own, plan_->blocks[me])) : parts[me];
      DirectSum sum(messages, plan_->ranks, block, result);
      messages.wait_all();
      sum.add_up();
      return;
    }
    case SumRoute::blocks:
      add_up_blocks(for_ranks(own, true), result);
      return;
    default:
      add_up_by_mpi(own, result);
  }
}

void ReduceScatter::add_up_by_mpi(const at::Tensor& own, const at::Tensor& result) const {
  // MPI scatters blocks that follow each other in memory.
  const auto in_order = empty({own.numel()}, own.options());
  const auto sum = sum_type(own.scalar_type());
  std::vector<comm::Count> counts;
  std::int64_t start = 0;
  for (const auto& box : plan_->blocks) {
    const auto size = geometry::volume(box);
    copy_region(resolved(view_of(own, box)), in_order.narrow(0, start, size).view(geometry::shape_of(box)));
    counts.push_back(sum.count_of(size, "MPI_Ireduce_scatter"));
    start += size;
  }
  const auto packed = for_sending(in_order);
  comm::Requests requests;
  requests.keep(packed);
  requests.keep(result);
  comm::check(DISTDL_MPI_LARGE(MPI_Ireduce_scatter)(packed.data_ptr(), result.data_ptr(), counts.data(), sum.type,
                                                    sum.op, plan_->group->handle(), requests.next()),
              "MPI_Ireduce_scatter");
  requests.wait_all();
}

OperatorPtr ReduceScatter::make_adjoint() const { return c10::make_intrusive<AllGather>(id_, !is_adjoint_, plan_); }

ReduceScatterPrimitive::ReduceScatterPrimitive(MPI_Comm root, const Partition& x, const Axes& axes)
    : Primitive("ReduceScatter", rank_set_of(root, {x}), x),
      group_(id_->rank_set, x_, axes.resolve(id_->name, x_.grid.dim())) {}

OperatorPtr ReduceScatterPrimitive::plan(const GlobalStructure& structure) {
  const auto dtype = check_roles(*id_, x_, structure);
  sum_type(dtype);
  // Along the scattered axes every worker has the whole tensor; its shape there is replaced by the balanced blocks.
  for (std::int64_t worker = 0; worker < x_.grid.size(); ++worker) {
    check_equal_shapes(*id_, x_, {x_.grid.ranks_along(worker, group_.axes).front(), worker}, structure);
  }
  auto blocks = check_blocks(*id_, x_, structure);
  for (const auto axis : group_.axes) {
    const auto d = static_cast<std::size_t>(axis);
    blocks[d] = geometry::Blocks::balanced(structure[my_rank()].sizes[d], x_.grid.shape()[d]);
  }
  return c10::make_intrusive<ReduceScatter>(id_, false,
                                            blocks_plan(x_, group_, blocks, dtype, structure.uses_devices()));
}

}  // namespace distdl::operators
