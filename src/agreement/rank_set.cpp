#include "agreement/rank_set.hpp"

#include <algorithm>
#include <functional>

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
  auto distinct = ranks;
  if (std::adjacent_find(distinct.begin(), distinct.end(), std::greater_equal<>()) != distinct.end()) {
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  }
  comm::CommunicatorPtr communicator;
  if (root != MPI_COMM_NULL && std::binary_search(distinct.begin(), distinct.end(), rank_in(root))) {
    communicator = comm::communicator(root, distinct);
  }
  return {std::move(communicator), base::Ranks(std::move(distinct)), root};
}

}  // namespace distdl::agreement
