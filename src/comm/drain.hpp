// Draining: early messages that no rank wants any more are received and discarded.
#pragma once

#include <mpi.h>

#include <vector>

#include "comm/communicator.hpp"

namespace distdl::comm {

/// Ranks tell each other how many early messages they have sent, and receive them. Collective over the communicator.
class Drain {
 public:
  /// The messages have this tag, or its second_tag(). This rank has sent one message to each of the receivers.
  Drain(int tag, const std::vector<int>& receivers, const Communicator& communicator);
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;
  ~Drain() = default;

  /// Makes progress without blocking. Returns whether all messages have arrived.
  bool advance();
  /// Waits for all messages.
  void wait();

 private:
  /// Receives a message of this rank and discards it, if one is there.
  bool discard_from(int source, int tag);

  const int tag_;
  const Communicator& communicator_;
  std::vector<int> sent_, arriving_;  // numbers of messages, by rank
  std::vector<char> discarded_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  int source_ = 0;
};

}  // namespace distdl::comm
