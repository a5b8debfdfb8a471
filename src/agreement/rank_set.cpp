#include "agreement/rank_set.hpp"

#include <set>

#include "comm/error.hpp"

namespace distdl::agreement {

namespace {

int rank_in(MPI_Comm comm) {
  int rank = 0;
  comm::check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  return rank;
}

}  // namespace

RankSet rank_set_of(MPI_Comm root, const std::vector<int>& ranks) {
  const std::set<int> distinct(ranks.begin(), ranks.end());
  RankSet rank_set{nullptr, {distinct.begin(), distinct.end()}, root};
  if (root != MPI_COMM_NULL && distinct.contains(rank_in(root))) {
    rank_set.communicator = comm::communicator(root, rank_set.ranks);
  }
  return rank_set;
}

}  // namespace distdl::agreement
