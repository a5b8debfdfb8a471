// Where a tensor lives: a partition as the operators see it.
#pragma once

#include <mpi.h>

#include <optional>
#include <vector>

#include "agreement/rank_set.hpp"
#include "agreement/structure.hpp"
#include "geometry/grid.hpp"

namespace distdl::agreement {

/// A partition as it comes from the user: workers in order, as ranks of the communicator that it was made from.
struct Partition {
  std::string name;  // how messages call it
  std::vector<int> ranks;
  Shape shape;
};

/// A partition within a set of ranks: worker i of the grid is rank `ranks[i]` of the set's communicator.
struct Placement {
  std::string name;
  geometry::Grid grid;
  base::Ranks ranks;
  std::optional<std::int64_t> own;  // this rank's worker; none if it is not in the partition

  int rank_of(std::int64_t worker) const { return ranks.at(static_cast<std::size_t>(worker)); }
  const Structure& of(const GlobalStructure& structure, std::int64_t worker) const {
    return structure.at(static_cast<std::size_t>(rank_of(worker)));
  }
};

/// All ranks of these partitions. Collective over them.
RankSet rank_set_of(MPI_Comm root, const std::vector<Partition>& partitions);
Placement place(const RankSet& rank_set, const Partition& partition);

/// The private communicator of some workers of a placement (ranks of the set), or null for a single worker.
comm::CommunicatorPtr group_communicator(const RankSet& rank_set, const std::vector<int>& ranks);

/// The zero-volume tensor that stands for "nothing here": [batch, 0], or [0].
Shape zero_volume(const Structure& input, bool preserve_batch);

}  // namespace distdl::agreement
