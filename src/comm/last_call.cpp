#include "comm/last_call.hpp"

#include <atomic>
#include <exception>
#include <list>
#include <optional>
#include <string>
#include <utility>

#include "comm/dissemination.hpp"
#include "comm/drain.hpp"
#include "comm/gather_texts.hpp"
#include "comm/progress.hpp"
#include "comm/vote.hpp"
#include "comm/waiting.hpp"
#include "comm/watchdog.hpp"

namespace distdl::comm {

namespace {

constexpr std::int64_t kLastCall = -2;  // no other call has this number

std::atomic<bool> program_ended{false};  // whether this rank has told all others that it makes no further call

/// Votes that this rank makes no further call on a communicator, one after another until all of its ranks vote so. A
/// rank that makes another call instead throws there, with this rank's text in its message.
///
/// In each round there is a vote, after which early messages are discarded if any rank sent some. Unless all ranks
/// agree, this one then takes part in the gathering of texts, for the messages of those that throw.
class LastVote {
 public:
  LastVote(const Communicator& communicator, std::string what) : communicator_(communicator), what_(std::move(what)) {
    begin();
  }

  const Communicator& communicator() const { return communicator_; }

  /// Makes progress without blocking. Returns whether all ranks have come to their last call.
  bool advance() {
    while (true) {
      if (texts_ && !texts_->advance()) return false;
      if (texts_) begin();
      if (!votes_->advance()) return false;
      const auto outcome = outcome_of(votes_->maxima());
      if (outcome.dropped && !drain_) drain_.emplace(tag_, std::vector<int>(), communicator_);
      if (drain_ && !drain_->advance()) return false;
      if (outcome.disagreement == Disagreement::none) return true;
      texts_.emplace(what_ + at_line(this_thread().id), communicator_);
    }
  }

 private:
  void begin() {
    texts_.reset();
    drain_.reset();
    communicator_.count_vote();
    tag_ = communicator_.next_tag();
    votes_.emplace(maxima_of({.call = kLastCall}), communicator_);
  }

  const Communicator& communicator_;
  const std::string what_;
  int tag_ = 0;
  std::optional<Dissemination> votes_;
  std::optional<Drain> drain_;
  std::optional<TextGather> texts_;
};

/// Votes that this rank makes no further call on these communicators. Votes on all of them are open at once: another
/// rank may wait on any of them, and only after it has thrown there does it vote on the next.
void agree_on_last_call(std::vector<const Communicator*> communicators, const char* name, const std::string& what) {
  std::erase_if(communicators, [](const auto* voters) { return voters->size() < 2 || voters->abandoned(); });
  const Waiting waiting;
  std::list<LastVote> open;
  for (const auto* communicator : communicators) open.emplace_back(*communicator, what);
  while (!open.empty()) {
    const Operation operation({.name = name, .communicator = &open.front().communicator()});
    const auto before = open.size();
    for (int polls = 0; open.size() == before; ++polls) {
      std::erase_if(open, [](auto& vote) { return vote.advance(); });
      if (debugging()) throw_if_given_up();
      if (open.size() == before) pause(polls);
    }
  }
}

std::vector<const Communicator*> all_communicators() {
  std::vector<const Communicator*> result;
  with_communicators([&](const auto& all) { result = all; });
  return result;
}

}  // namespace

void agree_on_freeing(std::vector<CommunicatorPtr> communicators) noexcept {
  if (program_ended || mpi_ended()) return;
  try {
    std::vector<const Communicator*> voters;
    for (const auto& communicator : communicators) voters.push_back(communicator.get());
    constexpr const char* name = "freeing the communicator";
    agree_on_last_call(std::move(voters), name, name);
  } catch (const std::exception&) {  // MPI has failed; the end of the program reports it
    return;
  }
}

void agree_on_end() {
  program_ended = true;
  agree_on_last_call(all_communicators(), kEndOfProgram, kEndOfProgram);
}

void agree_on_pause(const std::string& what) { agree_on_last_call(all_communicators(), kEndOfCell, what); }

}  // namespace distdl::comm
