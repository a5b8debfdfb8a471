#include "comm/vote.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "comm/departing.hpp"
#include "comm/error.hpp"
#include "comm/progress.hpp"
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
class Largest {
 public:
  Largest(const Votes& mine, const Communicator& communicator) : votes_(mine), communicator_(communicator) { send(); }

  bool known() const { return distance_ >= communicator_.size(); }

  /// The rank whose message ends this round.
  int awaited() const { return (communicator_.rank() + communicator_.size() - distance_) % communicator_.size(); }

  void take(const Votes& theirs) {
    for (std::size_t i = 0; i < votes_.size(); ++i) votes_[i] = std::max(votes_[i], theirs[i]);
    distance_ *= 2;
    send();
  }

  const Votes& votes() const { return votes_; }

 private:
  void send() const {
    const int to = (communicator_.rank() + distance_) % communicator_.size();
    if (!known()) depart(votes_.data(), sizeof(Votes), to, kVoteTag, communicator_);
  }

  Votes votes_;
  const Communicator& communicator_;
  int distance_ = 1;
};

Votes largest(const Votes& mine, const Communicator& communicator) {
  const Waiting waiting;
  Largest found(mine, communicator);
  while (!found.known()) found.take(received_from(found.awaited(), communicator));
  return found.votes();
}

/// The maximum of a value and of its negative tells whether all ranks have the same one.
Votes votes_of(const Ballot& ballot) {
  return {ballot.call,
          -ballot.call,
          ballot.value,
          -ballot.value,
          static_cast<std::int64_t>(ballot.change),
          ballot.requires_grad,
          ballot.grad_disabled,
          ballot.has_tangent,
          ballot.compiled,
          ballot.told};
}

bool same_call(const Votes& votes) { return votes[0] == -votes[1]; }

/// Every rank's text: first their lengths, then all of them as one.
class Texts {
 public:
  Texts(std::string mine, const Communicator& communicator)
      : mine_(std::move(mine)), length_(static_cast<int>(mine_.size())), handle_(communicator.handle()) {
    const auto ranks = static_cast<std::size_t>(communicator.size());
    lengths_.resize(ranks);
    offsets_.resize(ranks);
    check(MPI_Iallgather(&length_, 1, MPI_INT, lengths_.data(), 1, MPI_INT, handle_, &request_), "MPI_Iallgather");
  }
  Texts(const Texts&) = delete;
  Texts& operator=(const Texts&) = delete;
  ~Texts() = default;

  /// Goes on if nothing has to be waited for; whether all texts are here.
  bool arrive() {
    for (int done = 0; !here_;) {
      check(MPI_Test(&request_, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done == 0) return false;
      go_on();
    }
    return true;
  }

  std::vector<std::string> wait() {
    const Waiting waiting;
    while (!here_) {
      check(MPI_Wait(&request_, MPI_STATUS_IGNORE), "MPI_Wait");
      go_on();
    }
    std::vector<std::string> texts;
    for (std::size_t r = 0; r < lengths_.size(); ++r) {
      texts.push_back(all_.substr(static_cast<std::size_t>(offsets_[r]), static_cast<std::size_t>(lengths_[r])));
    }
    return texts;
  }

 private:
  void go_on() {
    here_ = lengths_known_;
    if (here_) return;
    lengths_known_ = true;
    int total = 0;
    for (std::size_t r = 0; r < lengths_.size(); ++r) {
      offsets_[r] = total;
      total += lengths_[r];
    }
    all_.resize(static_cast<std::size_t>(total));
    check(MPI_Iallgatherv(mine_.data(), length_, MPI_CHAR, all_.data(), lengths_.data(), offsets_.data(), MPI_CHAR,
                          handle_, &request_),
          "MPI_Iallgatherv");
  }

  const std::string mine_;
  const int length_;
  const MPI_Comm handle_;
  std::vector<int> lengths_, offsets_;
  std::string all_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  bool lengths_known_ = false, here_ = false;
};

/// A vote that this rank makes no further call on a communicator, held again until all of its ranks say so. Ranks that
/// make a call instead throw, with this rank's text in their message.
class LastVote {
 public:
  LastVote(const Communicator& communicator, const char* what) : communicator_(communicator), what_(what) { begin(); }

  const Communicator& communicator() const { return communicator_; }

  /// Goes on if nothing has to be waited for; whether all ranks have come to their last call.
  bool arrive() {
    while (true) {
      if (texts_ && !texts_->arrive()) return false;
      if (texts_) begin();
      while (!votes_->known()) {
        int there = 0;
        check(MPI_Iprobe(votes_->awaited(), kVoteTag, communicator_.handle(), &there, MPI_STATUS_IGNORE), "MPI_Iprobe");
        if (there == 0) return false;
        votes_->take(received_from(votes_->awaited(), communicator_));
      }
      if (same_call(votes_->votes())) return true;
      texts_.emplace(what_ + at_line(this_thread().id), communicator_);
    }
  }

 private:
  void begin() {
    texts_.reset();
    communicator_.count_vote();
    votes_.emplace(votes_of({.call = kEnd}), communicator_);
  }

  const Communicator& communicator_;
  const char* what_;
  std::optional<Largest> votes_;
  std::optional<Texts> texts_;
};

std::atomic<bool> ended{false};  // whether this rank has told all others that it makes no further call

/// Votes that this rank makes no further call on these communicators: on all of them at once, since a rank may wait for
/// this one on any of them, and come to the others only when it has thrown there.
void agree_on_last_call(std::vector<const Communicator*> voters, const char* what) {
  std::erase_if(voters, [](const auto* one) { return one->size() < 2 || one->abandoned(); });
  const Waiting waiting;
  std::list<LastVote> open;
  for (const auto* communicator : voters) open.emplace_back(*communicator, what);
  while (!open.empty()) {
    const Operation operation(what, 0, "", &open.front().communicator());
    const auto before = open.size();
    for (int looks = 0; open.size() == before; ++looks) {
      std::erase_if(open, [](auto& one) { return one.arrive(); });
      if (debugging()) throw_if_given_up();
      if (open.size() == before) pause(looks);
    }
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
  auto votes = votes_of(ballot);
  refuse_abandoned(communicator);
  communicator.handle();  // throws if it was freed, also where nobody has to be asked
  if (communicator.size() > 1) {
    communicator.count_vote();
    votes = largest(votes, communicator);
  }
  return {same_call(votes),
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
  return communicator.size() > 1 ? largest(Votes{mine}, communicator)[0] : mine;
}

std::vector<std::string> gather_texts(const Communicator& communicator, const std::string& mine) {
  return Texts(mine, communicator).wait();
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
