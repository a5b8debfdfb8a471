// Half-open ranges of integers and boxes of them: the vocabulary of everything else in this folder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace distdl::geometry {

using Shape = std::vector<std::int64_t>;

/// [start, stop). An interval with stop <= start is empty.
struct Interval {
  std::int64_t start = 0;
  std::int64_t stop = 0;

  bool empty() const { return stop <= start; }
  std::int64_t size() const { return empty() ? 0 : stop - start; }
  Interval shifted(std::int64_t by) const { return {start + by, stop + by}; }
  Interval grown(std::int64_t left, std::int64_t right) const { return {start - left, stop + right}; }
  bool operator==(const Interval&) const = default;
};

inline Interval intersect(Interval a, Interval b) { return {std::max(a.start, b.start), std::min(a.stop, b.stop)}; }

/// The product of one interval per dimension. The box of no dimensions holds one element.
using Box = std::vector<Interval>;

inline Shape shape_of(const Box& box) {
  Shape shape;
  shape.reserve(box.size());
  for (const auto& interval : box) shape.push_back(interval.size());
  return shape;
}

inline std::int64_t volume(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

inline std::int64_t volume(const Box& box) { return volume(shape_of(box)); }

}  // namespace distdl::geometry
