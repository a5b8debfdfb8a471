// Where ranks compare what they are about to make together, and exchange small data: layers, partitions, checkpoints.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "agreement/rank_set.hpp"

namespace distdl::agreement {

class HostExchange {
 public:
  /// Collective over these ranks of root.
  HostExchange(MPI_Comm root, std::vector<int> ranks);

  const std::vector<int>& ranks() const { return ranks_; }

  /// This rank, which has to be one of them.
  int rank() const { return ranks_.at(static_cast<std::size_t>(rank_set_.communicator->rank())); }

  /// Whether messages between these ranks may travel between hosts; the same on all of them.
  bool spans_hosts() const { return rank_set_.communicator && rank_set_.communicator->spans_hosts(); }
  /// The host of this rank, by a number that it alone has among the hosts of these ranks.
  std::int64_t host() const { return rank_set_.communicator ? rank_set_.communicator->host() : 0; }

  /// Whether all ranks passed the same text; if they did not, all texts in the order of the ranks. Throws if some
  /// ranks make another call instead, which `what` names. Collective.
  std::pair<bool, std::vector<std::string>> compare(const std::string& what, const std::string& text) const;

  /// Every rank's bytes, in the order of the ranks. Collective.
  std::vector<std::string> gather(std::string bytes) const;

  /// These ranks, in this order, as a communicator that may be handed to users: Cartesian if a shape is given. It is
  /// freed with root. Collective.
  MPI_Comm view(const std::vector<int>& shape) const;

  /// A communicator of these ranks, in this order, for a thread that the library runs, whose calls have no order with
  /// the program's. It is never handed to users, and freed with root. Collective.
  MPI_Comm apart() const;

 private:
  MPI_Comm root_;
  std::vector<int> ranks_;
  RankSet rank_set_;
};

}  // namespace distdl::agreement
