#include "comm/dissemination.hpp"

#include <algorithm>
#include <memory>

#include "comm/buffered_send.hpp"
#include "comm/error.hpp"
#include "comm/progress.hpp"
#include "comm/requests.hpp"
#include "comm/waiting.hpp"
#include "comm/watchdog.hpp"

namespace distdl::comm {

namespace {

Maxima received_from(int rank, const Communicator& communicator) {
  if (!debugging() && !patient()) {
    Maxima received;
    check(MPI_Recv(&received, sizeof(Maxima), MPI_BYTE, rank, kVoteTag, communicator.handle(), MPI_STATUS_IGNORE),
          "MPI_Recv");
    return received;
  }
  const auto received = std::make_shared<Maxima>();
  Requests requests;  // which can be given up
  requests.keep(received);
  check(DISTDL_MPI_LARGE(MPI_Irecv)(received.get(), sizeof(Maxima), MPI_BYTE, rank, kVoteTag, communicator.handle(),
                                    requests.next()),
        "MPI_Irecv");
  try {
    requests.wait_all();
  } catch (...) {
    communicator.abandon();
    throw;
  }
  return *received;
}

}  // namespace

void Maxima::merge(const Maxima& other) {
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::max(numbers[i], other.numbers[i]);
  flags |= other.flags;
  states |= other.states;
}

Dissemination::Dissemination(const Maxima& contribution, const Communicator& communicator)
    : maxima_(contribution), communicator_(communicator) {
  send();
}

bool Dissemination::advance() {
  while (!done()) {
    int arrived = 0;
    check(MPI_Iprobe(source(), kVoteTag, communicator_.handle(), &arrived, MPI_STATUS_IGNORE), "MPI_Iprobe");
    if (arrived == 0) return false;
    merge(received_from(source(), communicator_));
  }
  return true;
}

Maxima Dissemination::wait() {
  const Waiting waiting;
  auto& thread = this_thread();
  const bool in_operation = thread.activity.communicator == &communicator_;
  while (!done()) {
    if (in_operation) thread.awaited.store(source(), std::memory_order_relaxed);
    merge(received_from(source(), communicator_));
  }
  thread.awaited.store(-1, std::memory_order_relaxed);
  return maxima_;
}

void Dissemination::send() {
  const auto& rounds = communicator_.vote_rounds();
  for (; round_ < rounds.size(); ++round_) {
    for (const auto to : rounds[round_].to) send_buffered(&maxima_, sizeof(Maxima), to, kVoteTag, communicator_);
    if (!rounds[round_].from.empty()) return;
  }
}

void Dissemination::merge(const Maxima& received) {
  maxima_.merge(received);
  if (++next_ < communicator_.vote_rounds()[round_].from.size()) return;
  next_ = 0;
  ++round_;
  send();
}

}  // namespace distdl::comm
