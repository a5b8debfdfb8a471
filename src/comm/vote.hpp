// The few bytes that all ranks of an operator exchange before they exchange data: does everybody make the same call,
// and has anything changed anywhere? One small message from each rank in each of log2(ranks) rounds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace distdl::comm {

/// The tag of a vote's messages, which no operator uses.
inline constexpr int kVoteTag = 4245;

/// How much is different from the last call, on this rank or on any.
enum class Change : std::int64_t { none, derivatives, structure };

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
};

/// Collective.
Outcome vote(const Communicator& communicator, const Ballot& ballot);

/// The number that one rank tells the others, which bring 0: what a vote does beside, where none is held. Collective.
std::int64_t tell(const Communicator& communicator, std::int64_t mine);

/// Throws if an earlier vote on the communicator was given up.
void refuse_abandoned(const Communicator& communicator);

/// Every rank's text, by rank of the communicator. Collective.
std::vector<std::string> gather_texts(const Communicator& communicator, const std::string& mine);

/// Tells the other ranks that this one frees communicators: ranks that wait for it in a vote there throw. Returns when
/// all ranks of each have come to its end, or to their own. Collective, like MPI_Comm_free.
void agree_on_freeing(std::vector<CommunicatorPtr> communicators) noexcept;

/// Tells the other ranks that this one makes no further call: ranks that wait for it in a vote throw. Returns when all
/// ranks have come to their end. Collective, over the ranks of every communicator.
void agree_on_end();

}  // namespace distdl::comm
