// The NumPy-like rules by which the workers of one partition meet those of another (Broadcast, SumReduce).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "geometry/grid.hpp"

namespace distdl::geometry {

/// Every member belongs to exactly one root: in each dimension the extents of their partitions are equal, or the
/// partition of the roots has extent 1. A broadcast goes from the roots to their members, a sum-reduction back.
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
  Matching(const std::string& operation, Side roots, Side members);

  /// The rank of the root that a member belongs to.
  std::int64_t root_of(std::int64_t member_rank) const;

  /// The ranks of a root's members, ascending in the order in which their partition is read.
  std::vector<std::int64_t> members_of(std::int64_t root_rank) const;

 private:
  Side roots_, members_;
  Grid root_grid_, member_grid_;  // in which the workers are ranked: not transposed
  Shape roots_read_;              // the shape of the roots after it was transposed and extended
  Grid members_read_;
};

}  // namespace distdl::geometry
