// How one dimension is cut into the blocks of the workers along it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "geometry/interval.hpp"

namespace distdl::geometry {

/// Block i of n elements over p workers: the first n mod p workers hold one element more.
Interval balanced_block(std::int64_t n, std::int64_t p, std::int64_t i);

/// Consecutive blocks that cover [0, extent()). Balanced blocks are computed, all others are kept as their offsets.
class Blocks {
 public:
  static Blocks balanced(std::int64_t extent, std::int64_t count);
  static Blocks of_sizes(const Shape& sizes);

  std::int64_t extent() const { return extent_; }
  std::int64_t count() const { return count_; }
  Interval at(std::int64_t i) const;
  Shape sizes() const;

 private:
  std::int64_t extent_ = 0;
  std::int64_t count_ = 0;
  // Where each block starts, and where the last one stops; null for balanced blocks. Copies of this object share the
  // offsets, so that a copy costs the same for any count.
  std::shared_ptr<const std::vector<std::int64_t>> offsets_;
};

}  // namespace distdl::geometry
