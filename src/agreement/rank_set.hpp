// The ranks that take part in an operator or in a layer.
#pragma once

#include <mpi.h>

#include <vector>

#include "base/ranks.hpp"
#include "comm/communicator.hpp"

namespace distdl::agreement {

/// `ranks` are ranks of `root`, the communicator that the partitions come from, as the user counts. They are in
/// ascending order, so that the same ranks always vote together.
struct RankSet {
  comm::CommunicatorPtr communicator;  // of these ranks alone; null on all others
  base::Ranks ranks;
  MPI_Comm root = MPI_COMM_NULL;

  int user_rank(int rank) const { return ranks.at(static_cast<std::size_t>(rank)); }
  /// The rank in the communicator of a rank as the user counts.
  int rank_of(int user_rank) const { return static_cast<int>(ranks.place_of(user_rank)); }

  /// Whether `other` is a subset. This rank must be in both.
  bool covers(const RankSet& other) const {
    return communicator == other.communicator || (root == other.root && ranks.contains_all(other.ranks));
  }

  /// Held from the agreement until the data has moved, so that other threads' calls do not come in between.
  comm::Lock lock() const { return communicator ? communicator->lock() : comm::Lock(); }
};

/// The set of these ranks of root, without duplicates. Makes its communicator: collective over these ranks. Other
/// ranks, and ranks without a root communicator, get a set without a communicator.
RankSet rank_set_of(MPI_Comm root, const std::vector<int>& ranks);

/// Values that are known by rank of a set, in the order of these ranks.
template <class Values>
auto in_order_of(const std::vector<int>& ranks, const RankSet& rank_set, const Values& by_rank) {
  std::vector<std::decay_t<decltype(by_rank.at(0))>> result;
  for (const auto rank : ranks) result.push_back(by_rank.at(static_cast<std::size_t>(rank_set.rank_of(rank))));
  return result;
}

}  // namespace distdl::agreement
