// The few bytes that all ranks of an operator exchange before they exchange data: do all of them make the same call,
// and has anything changed on any of them?
//
// Messages of the call itself may be sent early, before the vote on it. If all ranks have sent theirs, and no rank
// throws, they are received after the vote. Otherwise all ranks know from the vote that they are to be discarded: see
// docs/round_trips.rst.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/dissemination.hpp"

namespace distdl::comm {

/// Sends this rank's messages of a call before the vote on it, over the communicator of the vote, with this tag. All of
/// them are buffered sends. Appends the rank that each message goes to.
using SendEarly = std::function<void(int tag, std::vector<int>& receivers)>;

/// A rank sends no more early messages of an operator than this, so that it waits for none: see buffered_send.cpp.
inline constexpr std::size_t kMaxEarlyMessages = 128;

/// The contribution of one rank to a vote.
struct Ballot {
  std::int64_t call = 0;        // which operation this is: must be the same on all ranks
  std::int64_t value = 0;       // hash of what must be equal on all ranks
  std::uint32_t flags = 0;      // bits of which the ranks want the union
  std::uint32_t exclusive = 0;  // flags that must not be set together, on any ranks; the same on all ranks
  std::int64_t broadcast = 0;   // the number that one rank sends to all others, which pass 0
  SendEarly send_early = {};    // empty if this rank has to wait for the vote
  bool early = true;            // whether it is called
};

/// What the ranks disagree on: the first in this order. All ranks learn the same, and discard early messages of the
/// call.
enum class Disagreement {
  none,
  step,   // an earlier call failed in its middle on some ranks: see fall_out_of_step()
  call,   // the ranks make different calls
  flags,  // all exclusive flags are set, on the same rank or on different ranks
  value,  // the ranks differ in what must be equal
};

/// The result of a vote, the same on all ranks.
struct Outcome {
  Disagreement disagreement = Disagreement::none;
  std::uint32_t flags = 0;  // of any rank
  std::int64_t broadcast = 0;
  bool all_can_send_early = false;
  bool dropped = false;               // early messages of some ranks, which were discarded
  std::optional<int> early_tag = {};  // of early messages that all ranks have sent, and that are to be received now

  bool any(std::uint32_t flag) const { return (flags & flag) != 0; }
};

/// Collective.
Outcome vote(const Communicator& communicator, const Ballot& ballot);

/// Throws if an earlier vote on the communicator was given up.
void refuse_abandoned(const Communicator& communicator);

/// How a ballot travels, and what follows from the maxima of all ranks: for votes that are no calls of vote().
Maxima maxima_of(const Ballot& ballot);
Outcome outcome_of(const Maxima& maxima, std::uint32_t exclusive = 0);

}  // namespace distdl::comm
