#include "comm/vote.hpp"

#include <exception>
#include <stdexcept>

#include "comm/drain.hpp"
#include "comm/error.hpp"
#include "comm/failure.hpp"
#include "comm/signals.hpp"

namespace distdl::comm {

namespace {

/// The places of the numbers that travel. All ranks have the same number if the maximum of its negative is the negative
/// of its maximum.
enum Number : std::size_t { kCall, kMinusCall, kValue, kMinusValue, kBroadcast };
static_assert(kBroadcast + 1 == Maxima::kNumbers);

/// The state of any rank, as bits.
enum State : std::uint32_t {
  kCannotSend = 1,
  kSent = 2,     // has sent at least one early message
  kNotSent = 4,  // has not sent all of its messages early
  kOutOfStep = 8,
  kInterrupted = 16,
};

/// Whether all ranks of the job are in it.
bool is_job(const Communicator& communicator) {
  static const int ranks = [] {
    int size = 0;
    check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    return size;
  }();
  return communicator.size() == ranks;
}

/// Sends this rank's early messages. Returns whether all of them were sent. If not, the call itself meets the reason,
/// after a vote that the other ranks wait for. Appends the receivers of the messages that were sent.
bool sent_early(const Ballot& ballot, int tag, std::vector<int>& receivers) {
  if (!ballot.send_early || !ballot.early) return false;
  try {
    ballot.send_early(tag, receivers);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

/// Decides what the ranks disagree on, and no other function does.
Disagreement disagreement_of(const Maxima& maxima, std::uint32_t exclusive) {
  const auto& numbers = maxima.numbers;
  if ((maxima.states & kOutOfStep) != 0) return Disagreement::step;
  if (numbers[kCall] != -numbers[kMinusCall]) return Disagreement::call;
  if (exclusive != 0 && (maxima.flags & exclusive) == exclusive) return Disagreement::flags;
  if (numbers[kValue] != -numbers[kMinusValue]) return Disagreement::value;
  return Disagreement::none;
}

}  // namespace

void refuse_abandoned(const Communicator& communicator) {
  if (communicator.abandoned()) {
    throw std::runtime_error("an earlier call on these ranks was given up: not all of them had come to it");
  }
}

Maxima maxima_of(const Ballot& ballot) {
  Maxima maxima;
  maxima.numbers[kCall] = ballot.call;
  maxima.numbers[kMinusCall] = -ballot.call;
  maxima.numbers[kValue] = ballot.value;
  maxima.numbers[kMinusValue] = -ballot.value;
  maxima.numbers[kBroadcast] = ballot.broadcast;
  maxima.flags = ballot.flags;
  if (!ballot.send_early) maxima.states = kCannotSend;
  return maxima;
}

Outcome outcome_of(const Maxima& maxima, std::uint32_t exclusive) {
  Outcome outcome;
  outcome.disagreement = disagreement_of(maxima, exclusive);
  outcome.flags = maxima.flags;
  outcome.broadcast = maxima.numbers[kBroadcast];
  outcome.all_can_send_early = (maxima.states & kCannotSend) == 0;
  const bool unwanted = outcome.disagreement != Disagreement::none || (maxima.states & kNotSent) != 0;
  outcome.dropped = (maxima.states & kSent) != 0 && unwanted;
  return outcome;
}

Outcome vote(const Communicator& communicator, const Ballot& ballot) {
  refuse_abandoned(communicator);
  communicator.handle();  // throws if it was freed, also where no other rank has to be asked
  auto maxima = maxima_of(ballot);
  if (communicator.size() == 1) return outcome_of(maxima, ballot.exclusive);
  communicator.count_vote();
  const int tag = communicator.next_tag();
  std::vector<int> receivers;
  const bool sent = sent_early(ballot, tag, receivers);
  if (sent || !receivers.empty()) maxima.states |= kSent;
  if (!sent) maxima.states |= kNotSent;
  if (!out_of_step().empty()) maxima.states |= kOutOfStep;
  if (interrupt_requested()) maxima.states |= kInterrupted;
  maxima = Dissemination(maxima, communicator).wait();
  // Calls of other threads have no order with the main thread's.
  if ((maxima.states & kInterrupted) != 0 && on_main_thread() && is_job(communicator)) hear_of_interrupt();
  auto outcome = outcome_of(maxima, ballot.exclusive);
  if (outcome.dropped) {
    Drain(tag, receivers, communicator).wait();
  } else if ((maxima.states & kSent) != 0) {
    outcome.early_tag = tag;
  }
  return outcome;
}

}  // namespace distdl::comm
