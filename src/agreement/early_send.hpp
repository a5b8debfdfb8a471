// Messages that a rank sends before the vote on their call: see docs/round_trips.rst.
#pragma once

#include <algorithm>

#include "comm/vote.hpp"

namespace distdl::agreement {

/// The tag of messages that are matched by their order between two ranks alone.
inline constexpr int kInOrder = 0;

/// How the messages of a call travel: their tag, and whether this rank has sent its own messages already.
struct EarlySend {
  int tag = kInOrder;
  bool sent = false;
};

/// How the messages of a call travel after the vote on it.
inline EarlySend early_send_of(const comm::Outcome& outcome) {
  return outcome.early_tag ? EarlySend{.tag = *outcome.early_tag, .sent = true} : EarlySend{};
}

/// Decides whether the messages of an operator's calls are sent before the votes on them: once all ranks could have
/// done so in the last call, and not in the next calls after messages were dropped, which costs more than it saves. It
/// follows from the outcomes of votes alone, so it is the same on all ranks that make the same calls.
class EarlySendPolicy {
 public:
  bool sends() const { return calls_ == 0; }
  void restart() { calls_ = 1; }
  void learn(const comm::Outcome& outcome) {
    if (outcome.dropped) {
      calls_ = kCallsAfterDrop;
    } else if (!outcome.all_can_send_early) {
      calls_ = std::max(calls_, 1);
    } else if (calls_ > 0) {
      --calls_;
    }
  }

 private:
  static constexpr int kCallsAfterDrop = 8;
  int calls_ = 1;  // in which all ranks still have to be able to send early
};

}  // namespace distdl::agreement
