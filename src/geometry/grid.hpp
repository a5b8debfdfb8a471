// The Cartesian grid of workers: row-major rank <-> index.
#pragma once

#include <cstdint>
#include <vector>

#include "geometry/interval.hpp"

namespace distdl::geometry {

class Grid {
 public:
  Grid() = default;
  explicit Grid(Shape shape);

  const Shape& shape() const { return shape_; }
  std::int64_t dim() const { return static_cast<std::int64_t>(shape_.size()); }
  std::int64_t size() const { return size_; }

  /// index(rank(i)) == i and rank(index(r)) == r; out of range throws.
  Shape index(std::int64_t rank) const;
  std::int64_t rank(const Shape& index) const;

  /// The ranks that differ from `rank` at most along `axes`, in row-major order of those axes.
  std::vector<std::int64_t> ranks_along(std::int64_t rank, const std::vector<std::int64_t>& axes) const;

 private:
  Shape shape_;
  std::int64_t size_ = 1;
};

}  // namespace distdl::geometry
