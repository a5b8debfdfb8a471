// The groups of workers of one partition along some of its axes: AllSumReduce, AllGather and ReduceScatter.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agreement/placement.hpp"
#include "operators/linear_operator.hpp"

namespace distdl::operators {

/// The axes along which a group extends: `along`, or all axes but `keep`. Throws std::invalid_argument unless exactly
/// one of them has a value, whose elements are distinct axes of the partition (negative numbers count from the end).
struct Axes {
  std::string name;  // how the operator calls the axes that it works along
  std::optional<std::vector<std::int64_t>> along;
  std::optional<std::vector<std::int64_t>> keep;

  std::vector<std::int64_t> resolve(const std::string& operation, std::int64_t dim) const;
};

/// This rank's group. Makes its communicator: collective over the group.
struct AxisGroup {
  std::vector<std::int64_t> axes;      // ascending
  std::vector<std::int64_t> workers;   // of the partition; empty on ranks outside of it
  std::vector<int> ranks;              // of these workers in the set of ranks
  comm::CommunicatorPtr communicator;  // of these workers in this order; null when this rank is alone

  AxisGroup(const RankSet& rank_set, const Placement& x, std::vector<std::int64_t> along);
};

}  // namespace distdl::operators
