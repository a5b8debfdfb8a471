#include "comm/vote.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <stdexcept>

#include "comm/departing.hpp"
#include "comm/error.hpp"
#include "comm/requests.hpp"
#include "comm/waiting.hpp"
#include "comm/watchdog.hpp"

namespace distdl::comm {

namespace {

// No operator's call has this number.
constexpr std::int64_t kEnd = -2;

using Votes = std::array<std::int64_t, 10>;

/// What another rank brings to this round of a vote.
Votes received_from(int rank, const Communicator& communicator) {
  if (!debugging()) {
    Votes theirs{};
    check(MPI_Recv(theirs.data(), static_cast<int>(theirs.size()), MPI_INT64_T, rank, kVoteTag, communicator.handle(),
                   MPI_STATUS_IGNORE),
          "MPI_Recv");
    return theirs;
  }
  const auto theirs = std::make_shared<Votes>();
  Requests requests;  // which can be given up
  requests.keep(theirs);
  check(DISTDL_MPI_LARGE(MPI_Irecv)(theirs->data(), static_cast<Count>(theirs->size()), MPI_INT64_T, rank, kVoteTag,
                                    communicator.handle(), requests.next()),
        "MPI_Irecv");
  try {
    requests.wait_all();
  } catch (...) {
    communicator.abandon();
    throw;
  }
  return *theirs;
}

/// The maxima over all ranks. After each round a rank knows those of twice as many ranks before it, so that one message
/// in each round is enough, and so are the rounds in which one rank could tell all others.
void largest(Votes& votes, const Communicator& communicator) {
  const Waiting waiting;
  const int ranks = communicator.size(), mine = communicator.rank();
  for (int distance = 1; distance < ranks; distance *= 2) {
    depart(votes.data(), sizeof(Votes), (mine + distance) % ranks, kVoteTag, communicator);
    const auto theirs = received_from((mine + ranks - distance) % ranks, communicator);
    for (std::size_t i = 0; i < votes.size(); ++i) votes[i] = std::max(votes[i], theirs[i]);
  }
}

std::atomic<bool> ended{false};  // whether this rank has told all others that it makes no further call

/// Votes that this rank makes no further call on these communicators.
void agree_on_last_call(std::vector<const Communicator*> voters, const char* what) {
  std::erase_if(voters, [](const auto* one) { return !one->holds_votes() || one->abandoned(); });
  // In any other order, two ranks could wait for each other on two communicators.
  std::sort(voters.begin(), voters.end(), [](const auto* a, const auto* b) { return a->place() < b->place(); });
  for (const auto* communicator : voters) {
    const Operation operation(what, 0, "", communicator);
    // Ranks that make a call instead throw, with this text in their message.
    while (!vote(*communicator, {.call = kEnd}).same_call)
      gather_texts(*communicator, what + at_line(this_thread().id));
  }
}

}  // namespace

std::int64_t value_of(const std::string& text) {
  return static_cast<std::int64_t>(std::hash<std::string>{}(text) >> 1);  // so that its negative is a number as well
}

void refuse_abandoned(const Communicator& communicator) {
  if (communicator.abandoned()) {
    throw std::runtime_error("an earlier call on these ranks was given up: not all of them had come to it");
  }
}

Outcome vote(const Communicator& communicator, const Ballot& ballot) {
  // The maximum of a value and of its negative tells whether all ranks have the same one.
  Votes votes{ballot.call,
              -ballot.call,
              ballot.value,
              -ballot.value,
              static_cast<std::int64_t>(ballot.change),
              ballot.requires_grad,
              ballot.grad_disabled,
              ballot.has_tangent,
              ballot.compiled,
              ballot.told};
  refuse_abandoned(communicator);
  communicator.handle();  // throws if it was freed, also where nobody has to be asked
  if (communicator.size() > 1) {
    communicator.count_vote();
    largest(votes, communicator);
  }
  return {votes[0] == -votes[1],
          votes[2] == -votes[3],
          static_cast<Change>(votes[4]),
          votes[5] != 0,
          votes[6] != 0,
          votes[7] != 0,
          votes[8] != 0,
          votes[9]};
}

std::int64_t tell(const Communicator& communicator, std::int64_t mine) {
  refuse_abandoned(communicator);
  Votes numbers{mine};
  if (communicator.size() > 1) largest(numbers, communicator);
  return numbers[0];
}

std::vector<std::string> gather_texts(const Communicator& communicator, const std::string& mine) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const auto handle = communicator.handle();
  std::vector<int> lengths(ranks), offsets(ranks);
  const Waiting waiting;
  const int length = static_cast<int>(mine.size());
  check(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, handle), "MPI_Allgather");
  int total = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    offsets[r] = total;
    total += lengths[r];
  }
  std::string all(static_cast<std::size_t>(total), '\0');
  check(MPI_Allgatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR, handle),
        "MPI_Allgatherv");
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < ranks; ++r) {
    texts.push_back(all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(lengths[r])));
  }
  return texts;
}

void agree_on_freeing(std::vector<CommunicatorPtr> communicators) noexcept {
  if (ended || mpi_ended()) return;
  try {
    std::vector<const Communicator*> voters;
    for (const auto& one : communicators) voters.push_back(one.get());
    agree_on_last_call(std::move(voters), "freeing the communicator");
  } catch (const std::exception&) {  // MPI has failed here, which the end of the program reports
    return;
  }
}

void agree_on_end() {
  ended = true;
  std::vector<const Communicator*> voters;
  with_communicators([&](const auto& all) { voters = all; });
  agree_on_last_call(std::move(voters), kEndOfProgram);
}

}  // namespace distdl::comm
