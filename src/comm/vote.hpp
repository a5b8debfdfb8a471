// The few bytes that all ranks of an operator exchange before they exchange data: does everybody make the same call,
// and has anything changed anywhere? Small messages, in each of log2(ranks) rounds one from each rank,
// or in log8(ranks) rounds up to seven where they travel between hosts.
//
// Messages of the call itself may be sent ahead of the vote. If all ranks have sent theirs, and nothing changed, they
// are received afterwards as they are. Otherwise all ranks know from the vote that they are to be dropped: see
// docs/round_trips.rst.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace distdl::comm {

/// The tag of a vote's messages, which no operator uses.
inline constexpr int kVoteTag = 4245;

/// How much is different from the last call, on this rank or on any.
enum class Change : std::int64_t { none, derivatives, structure };

/// Sends this rank's messages of a call ahead of the vote on it, over the communicator of the vote, with this tag. All
/// of them depart (see departing.hpp). Appends the rank that each goes to.
using SendAhead = std::function<void(int tag, std::vector<int>& receivers)>;

/// A rank sends no more messages than this ahead of a vote, so that it waits for none of them: see departing.cpp.
inline constexpr std::size_t kMostAhead = 128;

/// What one rank brings to a vote.
struct Ballot {
  std::int64_t call = 0;         // which operation this is: must be the same on all ranks
  std::int64_t value = 0;        // stands for something of which the ranks want to know whether it is equal
  Change change = Change::none;  // on this rank; in a backward pass: whether it has a gradient
  bool requires_grad = false;    // this rank's input takes part in differentiation
  bool grad_disabled = false;    // this rank runs under no_grad
  bool has_tangent = false;      // this rank's input has a forward-mode derivative
  bool compiled = false;         // this rank calls from a compiled program
  std::int64_t told = 0;         // a number that one rank tells the others, which bring 0
  bool could_send = false;       // this rank's messages of the call ahead of the vote
  SendAhead send = {};           // sends them; empty where they are not sent ahead
};

/// A number that stands for a text as the value of a ballot.
std::int64_t value_of(const std::string& text);

/// What all ranks know after a vote.
struct Outcome {
  bool same_call;
  bool same_value;
  Change change;  // the largest of any rank
  bool any_requires_grad;
  bool any_grad_disabled;
  bool any_has_tangent;
  bool any_compiled;
  std::int64_t told;
  bool any_out_of_step = false;  // see fall_out_of_step()
  bool all_could_send = false;
  bool dropped = false;           // what some ranks had sent ahead
  std::optional<int> ahead = {};  // the tag of messages that all ranks sent ahead, and that are to be received now
};

/// Collective.
Outcome vote(const Communicator& communicator, const Ballot& ballot);

/// Throws if an earlier vote on the communicator was given up.
void refuse_abandoned(const Communicator& communicator);

/// Every rank's text, by rank of the communicator. Collective.
std::vector<std::string> gather_texts(const Communicator& communicator, std::string mine);

/// Tells the other ranks that this one frees communicators: ranks that wait for it in a vote there throw. Returns when
/// all ranks of each have come to its end, or to their own. Collective, like MPI_Comm_free.
void agree_on_freeing(std::vector<CommunicatorPtr> communicators) noexcept;

/// Tells the other ranks that this one makes no further call: ranks that wait for it in a vote throw. Returns when all
/// ranks have come to their end. Collective, over the ranks of every communicator.
void agree_on_end();

}  // namespace distdl::comm
