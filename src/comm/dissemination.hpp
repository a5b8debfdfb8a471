// The maximum over all ranks of a few numbers, by small messages in rounds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "comm/communicator.hpp"

namespace distdl::comm {

/// The tag of the messages, which no operator uses.
inline constexpr int kVoteTag = 4245;

/// Numbers of which all ranks learn the maximum, and bits of which they learn the union.
struct Maxima {
  static constexpr std::size_t kNumbers = 5;  // see vote.cpp

  std::array<std::int64_t, kNumbers> numbers{};
  std::uint32_t flags = 0;   // the caller's
  std::uint32_t states = 0;  // the vote's own

  void merge(const Maxima& other);
};

/// In each round a rank sends the maxima that it knows, and receives those of others: see vote_rounds.hpp. A
/// contribution that is merged twice does not change the maxima. No rank waits until its messages are confirmed: see
/// buffered_send.hpp.
class Dissemination {
 public:
  /// Sends the messages of the first round. Collective.
  Dissemination(const Maxima& contribution, const Communicator& communicator);

  bool done() const { return round_ == communicator_.vote_rounds().size(); }
  /// Makes progress without blocking. Returns whether all messages have arrived.
  bool advance();
  /// Waits for all messages.
  Maxima wait();

  /// The maxima that this rank knows: of all ranks once it is done.
  const Maxima& maxima() const { return maxima_; }

 private:
  /// The rank whose message comes next in this round.
  int source() const { return communicator_.vote_rounds()[round_].from[next_]; }
  /// Sends the messages of this round, and of those after it while there is nothing to receive.
  void send();
  void merge(const Maxima& received);

  Maxima maxima_;
  const Communicator& communicator_;
  std::size_t round_ = 0, next_ = 0;
};

}  // namespace distdl::comm
