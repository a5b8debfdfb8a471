#include "comm/departing.hpp"

#include <mpi.h>

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/error.hpp"
#include "comm/waiting.hpp"

namespace distdl::comm {

namespace {

constexpr std::size_t kMostDeparting = 1024;  // 8 MiB at most

/// A message that MPI may still read. It is not freed where MPI fails.
struct Departure {
  std::vector<char> bytes;
  MPI_Request request = MPI_REQUEST_NULL;
};

struct Departures {
  std::mutex mutex;
  std::deque<Departure*> in_order;
};

/// Never destroyed: MPI may read the messages up to its end.
Departures& departures() {
  static auto* const all = new Departures;
  return *all;
}

/// Returns whether the message has been sent, and frees it then.
bool has_left(Departure* one) {
  int done = 0;
  check(MPI_Test(&one->request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  if (done != 0) delete one;
  return done != 0;
}

/// Waits for the first message of all; returns whether there was any.
bool finish_first() {
  Departure* first = nullptr;
  {
    auto& [mutex, in_order] = departures();
    const std::lock_guard lock(mutex);
    if (in_order.empty()) return false;
    first = in_order.front();
    in_order.pop_front();
  }
  check(MPI_Wait(&first->request, MPI_STATUS_IGNORE), "MPI_Wait");
  delete first;
  return true;
}

}  // namespace

void depart(const void* bytes, std::size_t size, int rank, int tag, const Communicator& communicator) {
  const auto* const first = static_cast<const char*>(bytes);
  auto one = std::make_unique<Departure>(Departure{{first, first + size}});
  check(DISTDL_MPI_LARGE(MPI_Isend)(one->bytes.data(), static_cast<Count>(size), MPI_BYTE, rank, tag,
                                    communicator.handle(), &one->request),
        "MPI_Isend");
  bool too_many = false;
  {
    auto& [mutex, in_order] = departures();
    const std::lock_guard lock(mutex);
    in_order.push_back(one.release());
    while (!in_order.empty() && has_left(in_order.front())) in_order.pop_front();
    too_many = in_order.size() > kMostDeparting;
  }
  if (!too_many) return;
  const Waiting waiting;
  finish_first();
}

void finish_departures() {
  const Operation operation("sending the last messages");
  const Waiting waiting;
  while (finish_first()) {
  }
}

}  // namespace distdl::comm
