#include "geometry/grid.hpp"

#include <stdexcept>
#include <string>

#include "base/text.hpp"

namespace distdl::geometry {

Grid::Grid(Shape shape) : shape_(std::move(shape)) {
  for (const auto extent : shape_) {
    if (extent < 1)
      throw std::invalid_argument("partition shape " + base::text(shape_) + ": every dimension must be >= 1");
  }
  size_ = volume(shape_);
}

Shape Grid::index(std::int64_t rank) const {
  if (rank < 0 || rank >= size_) {
    throw std::invalid_argument("rank " + std::to_string(rank) + " is not in a partition of shape " +
                                base::text(shape_));
  }
  Shape index(shape_.size());
  for (auto d = shape_.size(); d-- > 0;) {
    index[d] = rank % shape_[d];
    rank /= shape_[d];
  }
  return index;
}

std::int64_t Grid::rank(const Shape& index) const {
  bool inside = index.size() == shape_.size();
  std::int64_t rank = 0;
  for (std::size_t d = 0; inside && d < shape_.size(); ++d) {
    inside = index[d] >= 0 && index[d] < shape_[d];
    rank = rank * shape_[d] + index[d];
  }
  if (!inside)
    throw std::invalid_argument("index " + base::text(index) + " is not in a partition of shape " + base::text(shape_));
  return rank;
}

std::vector<std::int64_t> Grid::ranks_along(std::int64_t rank, const std::vector<std::int64_t>& axes) const {
  auto member = index(rank);
  Shape extents;
  for (const auto axis : axes) extents.push_back(shape_.at(static_cast<std::size_t>(axis)));
  const Grid group(extents);
  std::vector<std::int64_t> ranks;
  for (std::int64_t i = 0; i < group.size(); ++i) {
    const auto along = group.index(i);
    for (std::size_t a = 0; a < axes.size(); ++a) member[static_cast<std::size_t>(axes[a])] = along[a];
    ranks.push_back(this->rank(member));
  }
  return ranks;
}

}  // namespace distdl::geometry
