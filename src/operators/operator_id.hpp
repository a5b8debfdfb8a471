// Which operator a call is of, so that ranks and people can tell it from others.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "comm/vote.hpp"
#include "comm/waiting.hpp"
#include "operators/rank_set.hpp"
#include "operators/traffic.hpp"

namespace distdl::operators {

/// The ways to call an operator, of which all ranks choose the same.
enum class Pass { forward, backward, trace };

/// When the messages of an operator's calls are sent ahead of the votes on them: once all ranks could have done so in
/// the last call, and not in the next calls after messages were dropped, which costs more than it saves. It follows
/// from the outcomes of votes alone, so it is the same on all ranks that make the same calls.
class AheadOfVotes {
 public:
  bool sends() const { return calls_ == 0; }
  void begin() { calls_ = 1; }
  void learn(const comm::Outcome& outcome) {
    if (outcome.dropped) {
      calls_ = kCallsAfterDrop;
    } else if (!outcome.all_could_send) {
      calls_ = std::max(calls_, 1);
    } else if (calls_ > 0) {
      --calls_;
    }
  }

 private:
  static constexpr int kCallsAfterDrop = 8;
  int calls_ = 1;  // in which all ranks still have to be able to
};

/// An operator's name, its ranks and its number among the operators on these ranks.
struct OperatorId {
  std::string name;
  RankSet rank_set;
  std::int64_t number = 0;
  mutable std::array<AheadOfVotes, 3> ahead;  // by Pass; used under the lock of the ranks

  OperatorId(std::string operation, RankSet ranks);

  /// As statistics call it, and after distdl:: profilers.
  const std::string& name_of(bool adjoint) const { return adjoint ? adjoint_name_ : name; }
  Counter& counter(bool adjoint) const { return *(adjoint ? adjoint_counter_ : counter_); }

  /// As messages call a call of it: "Repartition number 4, backward".
  std::string text(Pass pass) const;
  /// The same for all ranks, and different for any two calls that can be told apart.
  std::int64_t call(Pass pass) const { return 3 * number + static_cast<std::int64_t>(pass); }

 private:
  std::string adjoint_name_;
  Counter *counter_, *adjoint_counter_;
};

/// What the watchdog sees for as long as this lives.
comm::Operation operation_of(const OperatorId& id, Pass pass);

}  // namespace distdl::operators
