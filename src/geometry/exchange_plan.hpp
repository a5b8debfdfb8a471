// Who sends which box to whom: the whole description of a repartition or a halo exchange, as seen by one worker.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "geometry/blocks.hpp"
#include "geometry/grid.hpp"
#include "geometry/interval.hpp"

namespace distdl::geometry {

/// The intervals of one dimension, worker by worker; both ends must not decrease from one worker to the next, so that
/// finding the workers that meet a given interval is a binary search.
struct Intervals {
  std::int64_t count = 0;
  std::function<Interval(std::int64_t)> at;
};

/// The boxes that the target workers want. Place i along dimension d of their grid wants at most bounds[d].at(i), which
/// may reach outside of [0, extent). Where workers at the same place along a dimension want different intervals,
/// `exact` gives the box of each worker.
struct Wanted {
  std::vector<Intervals> bounds;
  std::function<Box(std::int64_t rank)> exact = {};

  Box box(const Grid& grid, std::int64_t rank) const;
};

/// The smallest intervals that contain these intervals and whose ends do not decrease, as bounds need it. The intervals
/// may be in any order. Empty intervals may be bounded by anything.
std::vector<Interval> bounds_of(const std::vector<Interval>& intervals);

/// Worker (i, j, ...) of the target grid wants the box of intervals[0][i], intervals[1][j], .... The intervals along a
/// dimension may be in any order.
Wanted wanted_intervals(std::vector<std::vector<Interval>> intervals, const Grid& targets);

struct Transfer {
  std::int64_t peer;  // rank in the other side's grid
  Box region;         // in this worker's local coordinates: of its input if it sends, of its output if it receives
};

/// Sends and receives pair up: the k-th send of a worker to another is the k-th receive there from this worker.
struct ExchangePlan {
  std::vector<Transfer> sends;
  std::vector<Transfer> receives;
  Shape input_shape;
  Shape output_shape;
};

/// The plan of one worker, which holds block `source` of the tensor (if any) and wants box `target` (if any).
/// Periodic dimensions wrap. Costs a search per dimension plus the peers found.
ExchangePlan plan_exchange(const std::vector<Blocks>& owned, const Wanted& wanted, std::optional<std::int64_t> source,
                           std::optional<std::int64_t> target, const std::vector<bool>& periodic);

/// Whether no two of the boxes have an element in common.
bool disjoint(const std::vector<Transfer>& transfers);
std::int64_t volume(const std::vector<Transfer>& transfers);

}  // namespace distdl::geometry
