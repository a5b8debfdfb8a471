// Messages under way.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <any>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/error.hpp"
#include "comm/progress.hpp"
#include "comm/waiting.hpp"
#include "comm/watchdog.hpp"

namespace distdl::comm {

/// Owns pending requests, and keeps the memory that they use, which has to outlive them.
class Requests {
 public:
  Requests() = default;
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  ~Requests() {
    const auto done = [](MPI_Request request) { return request == MPI_REQUEST_NULL; };
    if (std::all_of(pending_.begin(), pending_.end(), done)) return;
    // An exception left requests pending. MPI may still read or write their memory, so it is never freed.
    static auto* const abandoned = new std::vector<std::vector<std::any>>;
    static auto* const lock = new std::mutex;
    const std::lock_guard locked(*lock);
    abandoned->push_back(std::move(kept_));
  }

  /// Keeps whatever owns the memory of the requests.
  void keep(std::any owner) { kept_.push_back(std::move(owner)); }

  /// Where the next MPI call puts its request.
  MPI_Request* next() { return &pending_.emplace_back(MPI_REQUEST_NULL); }

  bool empty() const { return pending_.empty(); }
  std::size_t size() const { return pending_.size(); }

  void wait_all() {
    if (pending_.empty()) return;  // MPI_Waitall may yield the core all the same
    const Waiting waiting;
    if (patient() || debugging()) {
      for (auto& request : pending_) wait_for(request);
    } else {
      check(MPI_Waitall(static_cast<int>(pending_.size()), pending_.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
    }
    pending_.clear();
    kept_.clear();
  }

  /// Waits for one request, by its position in the order of next(). In order, not for whichever comes first: where
  /// ranks share a core, MPI_Waitany of MPICH takes five times as long as MPI_Wait.
  void wait(std::size_t position) {
    const Waiting waiting;
    wait_for(pending_.at(position));
  }

  /// Whether one request is complete, by its position. Messages of this process that are under way go on meanwhile.
  bool test(std::size_t position) { return is_complete(pending_.at(position)); }

 private:
  static bool is_complete(MPI_Request& request) {
    int done = 0;
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  }

  static void wait_for(MPI_Request& request) {
    for (int polls = 0; patient() || debugging(); ++polls) {
      if (is_complete(request)) return;
      throw_if_given_up();
      pause(polls);
    }
    check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
  }

  std::vector<MPI_Request> pending_;
  std::vector<std::any> kept_;
};

}  // namespace distdl::comm
