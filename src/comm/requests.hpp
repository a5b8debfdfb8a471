// Messages under way.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <vector>

#include "comm/error.hpp"

namespace distdl::comm {

/// Owns pending requests. The buffers that they use must outlive wait_all().
class Requests {
 public:
  Requests() = default;
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  /// Where the next MPI call puts its request.
  MPI_Request* next() { return &pending_.emplace_back(MPI_REQUEST_NULL); }

  bool empty() const { return pending_.empty(); }

  void wait_all() {
    check(MPI_Waitall(static_cast<int>(pending_.size()), pending_.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
    pending_.clear();
  }

  /// Waits for one request, by its position in the order of next(). In order, not for whichever comes first: where
  /// ranks share a core, MPI_Waitany of MPICH takes five times as long as MPI_Wait.
  void wait(std::size_t position) { check(MPI_Wait(&pending_.at(position), MPI_STATUS_IGNORE), "MPI_Wait"); }

 private:
  std::vector<MPI_Request> pending_;
};

}  // namespace distdl::comm
