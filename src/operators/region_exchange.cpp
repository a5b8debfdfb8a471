#include "operators/region_exchange.hpp"

#include <ATen/ATen.h>

#include <algorithm>

#include "agreement/tensor_checks.hpp"
#include "comm/buffered_send.hpp"
#include "kernels/box_view.hpp"
#include "kernels/elements.hpp"
#include "kernels/memory.hpp"
#include "kernels/region_copy.hpp"
#include "kernels/staging.hpp"
#include "operators/messages.hpp"

namespace distdl::operators {

namespace {

/// The box that the messages fill without gaps; empty if they overlap or leave gaps.
geometry::Box covered(const RegionExchange::Side& side) {
  geometry::Box hull(side.local.sizes.size());
  if (side.overlapping || side.messages.empty()) return hull;
  hull = side.messages.front().region;
  std::int64_t volume = 0;
  for (const auto& [_, region] : side.messages) {
    volume += geometry::volume(region);
    for (std::size_t d = 0; d < hull.size(); ++d) {
      hull[d] = {std::min(hull[d].start, region[d].start), std::max(hull[d].stop, region[d].stop)};
    }
  }
  return volume == geometry::volume(hull) ? hull : geometry::Box(hull.size());
}

/// A tensor without values, with channels last in memory where x has them there. Dimensions of size 1, one for each
/// axis of workers that read the same, may stand before and between those of the images.
at::Tensor empty_in_order_of(const at::Tensor& x, const Shape& sizes, const at::TensorOptions& options) {
  const auto order = x.suggest_memory_format();
  if (order != at::MemoryFormat::Contiguous) return empty(sizes, options.memory_format(order));
  if (x.dim() <= 4 || x.is_contiguous()) return empty(sizes, options);
  for (std::int64_t d = 0; d < x.dim(); ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (x.size(d) != 1 || sizes[i] != 1) continue;
    const auto images = x.squeeze(d);
    if (images.suggest_memory_format() == at::MemoryFormat::Contiguous) continue;
    auto others = sizes;
    others.erase(others.begin() + d);
    return empty_in_order_of(images, others, options).unsqueeze(d);
  }
  return empty(sizes, options);
}

/// Fill a tensor outside of a box.
const at::Tensor& fill_around(const geometry::Box& box, const at::Tensor& result, double fill) {
  if (geometry::volume(box) == result.numel()) return result;
  if (fill == 0.0 && geometry::volume(box) == 0) return result.zero_();
  const auto value = filled({}, fill, result.options());
  if (geometry::volume(box) == 0) return result.copy_(value);
  auto rest = result;
  for (std::size_t d = 0; d < box.size(); ++d) {
    const auto dim = static_cast<std::int64_t>(d), behind = rest.size(dim) - box[d].stop;
    if (box[d].start > 0) rest.narrow(dim, 0, box[d].start).copy_(value);
    if (behind > 0) rest.narrow(dim, box[d].stop, behind).copy_(value);
    rest = rest.narrow(dim, box[d].start, box[d].size());
  }
  return result;
}

/// The message from this rank to itself that is as large as the result; null if there is none.
const RegionExchange::Message* whole_from(const RegionExchange::Side& side, int rank) {
  const auto whole = std::find_if(side.messages.begin(), side.messages.end(), [&](const auto& message) {
    return message.rank == rank && geometry::volume(message.region) == side.local.numel();
  });
  return whole == side.messages.end() ? nullptr : &*whole;
}

}  // namespace

bool RegionExchange::can_send_early(const at::Tensor& x) const {
  const auto largest = static_cast<std::int64_t>(comm::kMaxBuffered) / static_cast<std::int64_t>(x.element_size());
  return from_->messages.size() <= comm::kMaxEarlyMessages &&
         std::all_of(from_->messages.begin(), from_->messages.end(), [&](const Message& message) {
           return message.rank == id_->rank_set.communicator->rank() || geometry::volume(message.region) <= largest;
         });
}

void RegionExchange::send(const at::Tensor& x, Messages& messages) const {
  for (const auto& [rank, region] : from_->messages) {
    if (rank == id_->rank_set.communicator->rank()) continue;
    messages.send(packed(view_of(x, region)), rank);  // each leaves while the next is packed
  }
}

at::Tensor RegionExchange::apply(const at::Tensor& x, EarlySend early) const {
  const auto& comm = *id_->rank_set.communicator;
  const auto dtype = to_->local.dtype;
  const bool sums = to_->overlapping;
  const auto options = x.options().dtype(sums ? accumulate_type(dtype) : dtype);
  const auto made = [&](const at::TensorOptions& of) {
    const bool same_dims = same_ranks_ && to_->local.sizes.size() == x.sizes().size();
    return same_dims ? empty_in_order_of(x, to_->local.sizes, of) : empty(to_->local.sizes, of);
  };
  // If this rank's own block covers the result of a sum, copy it, and add only the borders.
  const auto* const basis = sums ? whole_from(*to_, comm.rank()) : nullptr;
  const auto result = made(options);
  if (!basis) fill_around(covered(*to_), result, fill_);

  // Boxes that are contiguous in memory travel from and to where they are; others through a buffer.
  Messages messages(id_->rank_set, early.tag, nullptr, in_pieces_);
  std::vector<at::Tensor> regions, arrivals, to_myself;
  for (const auto& message : to_->messages) {
    if (message.rank == comm.rank()) continue;
    regions.push_back(view_of(result, message.region));
    const bool direct = !sums && regions.back().is_contiguous() && !(x.is_cpu() && is_staged(x.device()));
    arrivals.push_back(direct ? regions.back() : empty(geometry::shape_of(message.region), options.dtype(dtype)));
    messages.receive(arrivals.back(), message.rank);
  }
  if (!early.sent) send(x, messages);
  for (const auto& message : from_->messages) {
    if (message.rank == comm.rank()) to_myself.push_back(resolved(view_of(x, message.region)));
  }
  const auto from_myself = [&](bool of_basis) {
    std::size_t own = 0;
    for (const auto& message : to_->messages) {
      if (message.rank != comm.rank()) continue;
      const auto& region = to_myself[own++];
      if ((&message == basis) != of_basis) continue;
      const auto target = view_of(result, message.region);
      sums && !of_basis ? add(target, region, target) : void(copy_region(region, target));
    }
  };
  if (basis) from_myself(true);
  from_myself(false);
  // In the order of the plan, so that a sum is the same from run to run.
  for (std::size_t i = 0; i < regions.size(); ++i) {
    messages.wait(i);
    if (sums) {
      add(regions[i], arrivals[i], regions[i]);
    } else if (!arrivals[i].is_same(regions[i])) {
      copy_region(arrivals[i], regions[i]);
    }
  }
  messages.wait_all();
  return result.scalar_type() == dtype ? result : made(options.dtype(dtype)).copy_(result);
}

Traffic RegionExchange::count_traffic(const at::Tensor& x) const {
  Traffic traffic;
  const auto size = static_cast<std::int64_t>(x.element_size());
  const auto count = [&](const Side& side, bool sends) {
    for (const auto& [rank, region] : side.messages) {
      if (rank == id_->rank_set.communicator->rank()) continue;
      const auto bytes = geometry::volume(region) * size;
      traffic.exchange(id_->rank_set.user_rank(rank), sends ? bytes : 0, sends ? 0 : bytes);
    }
  };
  count(*from_, true);
  count(*to_, false);
  return traffic;
}

OperatorPtr RegionExchange::make_adjoint() const {
  return c10::make_intrusive<RegionExchange>(id_, !is_adjoint_, to_, from_, 0.0, same_ranks_, in_pieces_);
}

ExchangePrimitive::ExchangePrimitive(std::string name, MPI_Comm root, const Partition& x, const Partition& y,
                                     std::vector<bool> periodic, double fill, bool preserve_batch)
    : Primitive(std::move(name), rank_set_of(root, {x, y}), x),
      y_(place(id_->rank_set, y)),
      periodic_(std::move(periodic)),
      fill_(fill),
      preserve_batch_(preserve_batch) {
  periodic_.resize(static_cast<std::size_t>(x_.grid.dim()), false);
}

OperatorPtr ExchangePrimitive::plan(const GlobalStructure& structure) {
  const auto dtype = check_roles(*id_, x_, structure);
  filled({1}, fill_, dtype);  // refuses here, where all ranks do
  const auto blocks = check_blocks(*id_, x_, structure);
  const auto exchange = geometry::plan_exchange(blocks, wanted(blocks), x_.own, y_.own, periodic_);

  const auto side = [&](const Placement& other, const std::vector<geometry::Transfer>& transfers) {
    auto made = std::make_shared<RegionExchange::Side>();
    for (const auto& transfer : transfers) {
      made->messages.push_back({other.rank_of(transfer.peer), transfer.region});
    }
    made->local.dtype = dtype;
    return made;
  };
  auto from = side(y_, exchange.sends), to = side(x_, exchange.receives);
  from->local.sizes = structure[my_rank()].sizes;
  to->local.sizes = y_.own ? exchange.output_shape : zero_volume(structure[my_rank()], preserve_batch_);
  from->overlapping = !unique() && !geometry::disjoint(exchange.sends);
  return c10::make_intrusive<RegionExchange>(id_, false, from, to, fill_, x_.ranks == y_.ranks,
                                             structure.uses_devices());
}

}  // namespace distdl::operators
