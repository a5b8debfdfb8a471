// The NumPy-like rules by which the workers of one partition meet those of another (Broadcast, SumReduce).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "geometry/grid.hpp"

namespace distdl::geometry {

/// Every worker of the `many` side belongs to exactly one worker of the `one` side: in each dimension the extents are
/// equal, or the `one` side has extent 1. A broadcast goes from `one` to `many`, a sum-reduction back.
///
/// A transposed side is read with its indices reversed: worker (i, j) of a 3 x 4 partition stands at (j, i) of 4 x 3.
/// After that, the shorter shape is extended to the left with ones.
class Matching {
 public:
  struct Side {
    std::string name;  // how messages call it, such as "P_x"
    Shape shape;
    bool transpose = false;
  };

  /// Throws std::invalid_argument with the operation, both shapes and the offending dimension.
  Matching(const std::string& operation, Side one, Side many);

  /// The rank on the `one` side that a rank on the `many` side belongs to.
  std::int64_t one_of(std::int64_t many_rank) const;

  /// The ranks on the `many` side that belong to a rank on the `one` side, ascending in the order in which the `many`
  /// side is read.
  std::vector<std::int64_t> many_of(std::int64_t one_rank) const;

 private:
  Side one_, many_;
  Grid one_grid_, many_grid_;  // in which the workers are ranked: not transposed
  Shape one_read_;             // the shape of the `one` side after it was transposed and extended
  Grid many_read_;
};

}  // namespace distdl::geometry
