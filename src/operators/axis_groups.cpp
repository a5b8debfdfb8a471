#include "operators/axis_groups.hpp"

#include <algorithm>
#include <stdexcept>

#include "base/text.hpp"

namespace distdl::operators {

std::vector<std::int64_t> Axes::resolve(const std::string& operation, std::int64_t dim) const {
  if (along.has_value() == keep.has_value()) {
    throw std::invalid_argument(operation + ": give either " + name + " or axes_keep" +
                                (along ? ", not both" : "; got neither"));
  }
  std::vector<bool> listed(static_cast<std::size_t>(dim), false);
  for (const auto axis : along ? *along : *keep) {
    const auto a = axis < 0 ? axis + dim : axis;
    if (a < 0 || a >= dim) {
      throw std::invalid_argument(operation + ": axis " + std::to_string(axis) + " is not an axis of P_x, which has " +
                                  std::to_string(dim) + " dimensions");
    }
    if (listed[static_cast<std::size_t>(a)]) {
      throw std::invalid_argument(operation + ": axis " + std::to_string(axis) + " is given twice");
    }
    listed[static_cast<std::size_t>(a)] = true;
  }
  std::vector<std::int64_t> axes;
  for (std::int64_t a = 0; a < dim; ++a) {
    if (listed[static_cast<std::size_t>(a)] == along.has_value()) axes.push_back(a);
  }
  return axes;
}

AxisGroup::AxisGroup(const RankSet& rank_set, const Placement& x, std::vector<std::int64_t> along)
    : axes(std::move(along)) {
  if (!x.own) return;
  workers = x.grid.ranks_along(*x.own, axes);
  for (const auto worker : workers) ranks.push_back(x.rank_of(worker));
  communicator = group_communicator(rank_set, ranks);
}

}  // namespace distdl::operators
