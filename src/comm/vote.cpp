#include "comm/vote.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "comm/departing.hpp"
#include "comm/error.hpp"
#include "comm/failure.hpp"
#include "comm/progress.hpp"
#include "comm/requests.hpp"
#include "comm/signals.hpp"
#include "comm/waiting.hpp"
#include "comm/watchdog.hpp"

namespace distdl::comm {

namespace {

// No operator's call has this number.
constexpr std::int64_t kEnd = -2;

/// In each round a rank sends to one rank less than this. On one host, where a message costs more than it waits, two
/// ranks at a time are the fastest; between hosts eight ranks need one round.
int radix_of(const Communicator& communicator) { return communicator.spans_hosts() ? 8 : 2; }

/// What any rank has, as bits.
enum Flag : std::int64_t {
  kRequiresGrad = 1,
  kGradDisabled = 2,
  kHasTangent = 4,
  kCompiled = 8,
  kCannotSend = 16,
  kSent = 32,     // a message at least
  kNotSent = 64,  // all of them
  kOutOfStep = 128,
  kInterrupted = 256,
};

/// What travels. The maximum of a number and of its negative tells whether all ranks have the same one.
struct Votes {
  std::int64_t call = 0, minus_call = 0, value = 0, minus_value = 0, change = 0, told = 0, flags = 0;

  void add(const Votes& other) {
    for (const auto member :
         {&Votes::call, &Votes::minus_call, &Votes::value, &Votes::minus_value, &Votes::change, &Votes::told}) {
      this->*member = std::max(this->*member, other.*member);
    }
    flags |= other.flags;
  }

  bool any(Flag flag) const { return (flags & flag) != 0; }
  bool same_call() const { return call == -minus_call; }
  bool same_value() const { return value == -minus_value; }
};

/// What another rank brings to this round of a vote.
Votes received_from(int rank, const Communicator& communicator) {
  if (!debugging() && !patient()) {
    Votes theirs;
    check(MPI_Recv(&theirs, sizeof(Votes), MPI_BYTE, rank, kVoteTag, communicator.handle(), MPI_STATUS_IGNORE),
          "MPI_Recv");
    return theirs;
  }
  const auto theirs = std::make_shared<Votes>();
  Requests requests;  // which can be given up
  requests.keep(theirs);
  check(DISTDL_MPI_LARGE(MPI_Irecv)(theirs.get(), sizeof(Votes), MPI_BYTE, rank, kVoteTag, communicator.handle(),
                                    requests.next()),
        "MPI_Irecv");
  try {
    requests.wait_all();
  } catch (...) {
    communicator.abandon();
    throw;
  }
  return *theirs;
}

/// Adds up the votes of all ranks. After each round a rank knows those of `radix` times as many ranks before it, some
/// of them twice, which does not matter.
class Sum {
 public:
  Sum(const Votes& mine, const Communicator& communicator)
      : votes_(mine), communicator_(communicator), radix_(radix_of(communicator)) {
    send();
  }

  bool known() const { return distance_ >= communicator_.size(); }

  /// The rank whose message comes next in this round.
  int awaited() const {
    return (communicator_.rank() + communicator_.size() - awaited_ * distance_) % communicator_.size();
  }

  void take(const Votes& theirs) {
    votes_.add(theirs);
    if (++awaited_ <= peers()) return;
    awaited_ = 1;
    distance_ *= radix_;
    send();
  }

  const Votes& votes() const { return votes_; }

 private:
  int peers() const { return std::min(radix_ - 1, (communicator_.size() - 1) / distance_); }

  void send() const {
    for (int i = 1; i <= peers(); ++i) {
      const int to = (communicator_.rank() + i * distance_) % communicator_.size();
      depart(&votes_, sizeof(Votes), to, kVoteTag, communicator_);
    }
  }

  Votes votes_;
  const Communicator& communicator_;
  const int radix_;
  int distance_ = 1, awaited_ = 1;
};

Votes sum_of(const Votes& mine, const Communicator& communicator) {
  const Waiting waiting;
  Sum sum(mine, communicator);
  while (!sum.known()) sum.take(received_from(sum.awaited(), communicator));
  return sum.votes();
}

Votes votes_of(const Ballot& ballot) {
  Votes votes{
      ballot.call, -ballot.call, ballot.value, -ballot.value, static_cast<std::int64_t>(ballot.change), ballot.told, 0};
  const auto flag = [&](Flag one, bool mine) {
    if (mine) votes.flags |= one;
  };
  flag(kRequiresGrad, ballot.requires_grad);
  flag(kGradDisabled, ballot.grad_disabled);
  flag(kHasTangent, ballot.has_tangent);
  flag(kCompiled, ballot.compiled);
  flag(kCannotSend, !ballot.could_send);
  return votes;
}

/// Whether all ranks of the job are in it.
bool is_job(const Communicator& communicator) {
  static const int ranks = [] {
    int size = 0;
    check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    return size;
  }();
  return communicator.size() == ranks;
}

/// Sends this rank's messages ahead of the vote. Returns whether all of them were sent; where not, the call itself
/// meets the reason, after a vote that the other ranks wait for. `receivers` are those of the messages that were sent.
bool sent_ahead(const Ballot& ballot, int tag, std::vector<int>& receivers) {
  if (!ballot.send) return false;
  try {
    ballot.send(tag, receivers);
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

/// What ranks have sent ahead of a vote, and nobody wants any more. They tell each other how many messages there are,
/// and receive them.
class Drop {
 public:
  Drop(int tag, const std::vector<int>& receivers, const Communicator& communicator)
      : tag_(tag),
        communicator_(communicator),
        sent_(static_cast<std::size_t>(communicator.size())),
        arriving_(sent_.size()),
        nowhere_(kLargestDeparting) {
    for (const auto rank : receivers) ++sent_[static_cast<std::size_t>(rank)];
    check(MPI_Ialltoall(sent_.data(), 1, MPI_INT, arriving_.data(), 1, MPI_INT, communicator.handle(), &request_),
          "MPI_Ialltoall");
  }
  Drop(const Drop&) = delete;
  Drop& operator=(const Drop&) = delete;
  ~Drop() = default;

  /// Goes on if nothing has to be waited for; whether all messages are here.
  bool arrive() {
    int there = 0;
    check(MPI_Test(&request_, &there, MPI_STATUS_IGNORE), "MPI_Test");
    if (there == 0) return false;
    for (; from_ < communicator_.size(); ++from_) {
      for (auto& left = arriving_[static_cast<std::size_t>(from_)]; left > 0; --left) {
        check(MPI_Iprobe(from_, tag_, communicator_.handle(), &there, MPI_STATUS_IGNORE), "MPI_Iprobe");
        if (there == 0) return false;
        check(MPI_Recv(nowhere_.data(), static_cast<int>(nowhere_.size()), MPI_BYTE, from_, tag_,
                       communicator_.handle(), MPI_STATUS_IGNORE),
              "MPI_Recv");
      }
    }
    return true;
  }

  void wait() {
    const Waiting waiting;
    for (int looks = 0; !arrive(); ++looks) pause(looks);
  }

 private:
  const int tag_;
  const Communicator& communicator_;
  std::vector<int> sent_, arriving_;
  std::vector<char> nowhere_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  int from_ = 0;
};

/// Every rank's text: first their lengths, then all of them as one.
class Texts {
 public:
  Texts(std::string mine, const Communicator& communicator)
      : mine_(std::move(mine)),
        length_(static_cast<std::int64_t>(mine_.size())),
        handle_(communicator.handle()),
        lengths_(static_cast<std::size_t>(communicator.size())) {
    check(MPI_Iallgather(&length_, 1, MPI_INT64_T, lengths_.data(), 1, MPI_INT64_T, handle_, &request_),
          "MPI_Iallgather");
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
      texts.push_back(all_.substr(static_cast<std::size_t>(offsets_[r]), static_cast<std::size_t>(counts_[r])));
    }
    return texts;
  }

 private:
  void go_on() {
    here_ = lengths_known_;
    if (here_) return;
    lengths_known_ = true;
    std::int64_t total = 0;
    for (const auto length : lengths_) {
      offsets_.push_back(displacement_of(total, "MPI_Iallgatherv"));
      total += length;
      counts_.push_back(count_of(total, "MPI_Iallgatherv") - static_cast<Count>(offsets_.back()));
    }
    all_.resize(static_cast<std::size_t>(total));
    check(DISTDL_MPI_LARGE(MPI_Iallgatherv)(mine_.data(), static_cast<Count>(length_), MPI_CHAR, all_.data(),
                                            counts_.data(), offsets_.data(), MPI_CHAR, handle_, &request_),
          "MPI_Iallgatherv");
  }

  const std::string mine_;
  const std::int64_t length_;
  const MPI_Comm handle_;
  std::vector<std::int64_t> lengths_;
  std::vector<Count> counts_;  // the lengths again, as MPI counts; all ranks throw where they are too many for it
  std::vector<Displacement> offsets_;
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
      if (votes_->votes().any(kSent) && !drop_) drop_.emplace(tag_, std::vector<int>(), communicator_);
      if (drop_ && !drop_->arrive()) return false;
      if (votes_->votes().same_call()) return true;
      texts_.emplace(what_ + at_line(this_thread().id), communicator_);
    }
  }

 private:
  void begin() {
    texts_.reset();
    drop_.reset();
    communicator_.count_vote();
    tag_ = communicator_.next_tag();
    votes_.emplace(votes_of({.call = kEnd}), communicator_);
  }

  const Communicator& communicator_;
  const char* what_;
  int tag_ = 0;
  std::optional<Sum> votes_;
  std::optional<Drop> drop_;
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
  refuse_abandoned(communicator);
  communicator.handle();  // throws if it was freed, also where nobody has to be asked
  auto votes = votes_of(ballot);
  int tag = 0;
  std::vector<int> receivers;
  if (communicator.size() > 1) {
    communicator.count_vote();
    tag = communicator.next_tag();
    const bool sent = sent_ahead(ballot, tag, receivers);
    if (sent || !receivers.empty()) votes.flags |= kSent;
    if (!sent) votes.flags |= kNotSent;
    if (!out_of_step().empty()) votes.flags |= kOutOfStep;
    if (interrupt_requested()) votes.flags |= kInterrupted;
    votes = sum_of(votes, communicator);
    // Calls of other threads come in no order with those of the main thread.
    if (votes.any(kInterrupted) && on_main_thread() && is_job(communicator)) hear_of_interrupt();
  }
  Outcome outcome{votes.same_call(),
                  votes.same_value(),
                  static_cast<Change>(votes.change),
                  votes.any(kRequiresGrad),
                  votes.any(kGradDisabled),
                  votes.any(kHasTangent),
                  votes.any(kCompiled),
                  votes.told,
                  votes.any(kOutOfStep),
                  !votes.any(kCannotSend)};
  if (!votes.any(kSent)) return outcome;
  const bool raises = !outcome.same_call || !outcome.same_value || outcome.any_out_of_step ||
                      (outcome.any_requires_grad && outcome.any_grad_disabled);
  outcome.dropped = raises || votes.any(kNotSent);
  if (outcome.dropped) {
    Drop(tag, receivers, communicator).wait();
  } else {
    outcome.ahead = tag;
  }
  return outcome;
}

std::vector<std::string> gather_texts(const Communicator& communicator, std::string mine) {
  return Texts(std::move(mine), communicator).wait();
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
