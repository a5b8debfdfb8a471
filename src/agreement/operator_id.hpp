// The identity of an operator, by which ranks and people tell its calls from others.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "agreement/early_send.hpp"
#include "agreement/rank_set.hpp"
#include "agreement/traffic.hpp"
#include "comm/waiting.hpp"

namespace distdl::agreement {

/// The ways to call an operator, of which all ranks choose the same.
enum class Pass { forward, backward, trace };
inline constexpr std::size_t kPasses = 3;

/// Hint appended to messages about backward passes that only some ranks entered.
inline constexpr const char* kBackwardRule =
    "; a backward pass runs on a rank only through calls on which its loss and the inputs of torch.autograd.grad "
    "depend: let both depend on the same calls on all ranks";

/// An operator's name, its ranks and its number among the operators on these ranks.
struct OperatorId {
  std::string name;
  RankSet rank_set;
  std::int64_t number = 0;
  mutable std::array<EarlySendPolicy, kPasses> early_sends;  // by Pass; used under the lock of the ranks

  OperatorId(std::string operation, RankSet ranks);

  /// The name in statistics and, after distdl::, in profiles.
  const std::string& name_of(bool adjoint) const { return adjoint ? adjoint_name_ : name; }
  Counter& counter(bool adjoint) const { return *(adjoint ? adjoint_counter_ : counter_); }

  /// The name of a call in messages: "Repartition number 4, backward".
  std::string text(Pass pass) const;
  /// The same for all ranks, and different for any two calls that can be told apart.
  std::int64_t call(Pass pass) const {
    return static_cast<std::int64_t>(kPasses) * number + static_cast<std::int64_t>(pass);
  }

 private:
  std::string adjoint_name_;
  Counter *counter_, *adjoint_counter_;
};

/// Shows the operator's call to the watchdog while the result lives.
comm::Operation operation_of(const OperatorId& id, Pass pass);

}  // namespace distdl::agreement
