#include "agreement/placement.hpp"

#include <stdexcept>

#include "base/text.hpp"

namespace distdl::agreement {

using base::text;

RankSet rank_set_of(MPI_Comm root, const std::vector<Partition>& partitions) {
  std::vector<int> ranks;
  for (const auto& partition : partitions) ranks.insert(ranks.end(), partition.ranks.begin(), partition.ranks.end());
  return rank_set_of(root, ranks);
}

Placement place(const RankSet& rank_set, const Partition& partition) {
  Placement placement{partition.name, geometry::Grid(partition.shape), {}, {}};
  if (placement.grid.size() != static_cast<std::int64_t>(partition.ranks.size())) {
    throw std::invalid_argument(partition.name + " has " + std::to_string(partition.ranks.size()) +
                                " ranks, but its shape " + text(partition.shape) + " needs " +
                                std::to_string(placement.grid.size()));
  }
  std::vector<int> ranks;
  for (const auto rank : partition.ranks) {
    const auto in_set = rank_set.rank_of(rank);
    if (rank_set.communicator && in_set == rank_set.communicator->rank()) {
      placement.own = static_cast<std::int64_t>(ranks.size());
    }
    ranks.push_back(in_set);
  }
  placement.ranks = base::Ranks(std::move(ranks));
  return placement;
}

comm::CommunicatorPtr group_communicator(const RankSet& rank_set, const std::vector<int>& ranks) {
  if (ranks.size() == 1) return nullptr;
  return comm::communicator(rank_set.communicator->handle(), ranks);
}

Shape zero_volume(const Structure& input, bool preserve_batch) {
  if (preserve_batch && !input.sizes.empty()) return {input.sizes.front(), 0};
  return {0};
}

}  // namespace distdl::agreement
