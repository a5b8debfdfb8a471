#include "agreement/voting.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

#include "base/errors.hpp"
#include "base/hash.hpp"
#include "base/text.hpp"
#include "comm/failure.hpp"
#include "comm/gather_texts.hpp"
#include "comm/watchdog.hpp"

namespace distdl::agreement {

namespace {

std::atomic<bool> check_structure{true};

// Added to the number of a call, so that it differs from the same call on ranks that check the structure. No call has
// so large a number.
constexpr std::int64_t kUnchecked = std::int64_t{1} << 60;

template <class Error = std::runtime_error>
[[noreturn]] void throw_gathered(const RankSet& rank_set, const std::string& rule, const std::string& own) {
  const auto texts = comm::gather_texts(*rank_set.communicator, own);
  const bool in_backward = std::any_of(texts.begin(), texts.end(),
                                       [](const auto& text) { return text.find(", backward") != std::string::npos; });
  base::throw_on_all<Error>(
      rule + "; " + base::by_rank(rank_set.ranks.list(), texts) + (in_backward ? kBackwardRule : ""),
      rank_set.communicator->rank() != 0);
}

/// Distinguishes a call of an operator from its other calls, for a person who looks for a mistake.
std::string fingerprint(const RankSet& rank_set, const Structure& tensor) {
  if (!comm::debugging()) return {};
  const auto dtype = tensor.error_kind == Structure::Error::none ? c10::toString(tensor.dtype) : "an error";
  return ", call " + std::to_string(rank_set.communicator->votes()) + " on these ranks, with " + dtype + " " +
         base::text(tensor.sizes);
}

}  // namespace

void set_structure_check(bool on) { check_structure = on; }
bool structure_check() { return check_structure || comm::debugging(); }
bool votes_on_calls(const RankSet& rank_set) { return structure_check() || !rank_set.communicator->unchecked(); }

std::uint32_t flags_of(Derivatives derivatives) {
  return (derivatives.requires_grad ? kRequiresGrad : 0U) | (derivatives.has_tangent ? kHasTangent : 0U);
}

Change change_of(std::uint32_t flags) {
  if ((flags & kStructureChanged) != 0) return Change::structure;
  return (flags & kDerivativesChanged) != 0 ? Change::derivatives : Change::none;
}

Derivatives derivatives_of(std::uint32_t flags) { return {(flags & kRequiresGrad) != 0, (flags & kHasTangent) != 0}; }

comm::Outcome vote(const RankSet& rank_set, const comm::Ballot& ballot, LazyText description) {
  const auto outcome = comm::vote(*rank_set.communicator, ballot);
  const bool in_step = outcome.disagreement != comm::Disagreement::step;
  if (in_step && outcome.disagreement != comm::Disagreement::call) return outcome;
  const auto own = description() + comm::at_line(comm::this_thread().id);
  if (in_step) throw_gathered(rank_set, "the ranks do not make the same call", own);
  const auto why = comm::out_of_step();
  throw_gathered(rank_set,
                 "an earlier call failed in its middle on some ranks, so that its messages would be taken for those of "
                 "other calls; start the program again, from its last checkpoint",
                 why.empty() ? own : why);
}

comm::Outcome vote_on_call(const OperatorId& id, Pass pass, comm::Ballot ballot, const Structure& tensor) {
  const bool unchecked = !structure_check();
  auto& policy = id.early_sends.at(static_cast<std::size_t>(pass));
  ballot.call = id.call(pass) + (unchecked ? kUnchecked : 0);
  ballot.exclusive = kRequiresGrad | kGradDisabled;
  if (!records_gradients()) ballot.flags |= kGradDisabled;
  ballot.early = policy.sends();
  const CountedWaits waits(id.counter(pass == Pass::backward));
  const auto outcome = vote(id.rank_set, ballot, [&] {
    return id.text(pass) + fingerprint(id.rank_set, tensor) + (unchecked ? ", without the structure check" : "");
  });
  id.rank_set.communicator->set_unchecked(unchecked);
  policy.learn(outcome);
  if (outcome.disagreement == comm::Disagreement::flags) throw_mixed_modes(id);
  return outcome;
}

void throw_mixed_modes(const OperatorId& id) {
  throw_gathered(id.rank_set,
                 id.name +
                     ": gradients are asked for on some ranks and disabled on others; enter torch.no_grad "
                     "(or pass create_graph) on all ranks or on none",
                 records_gradients() ? "enabled" : "disabled");
}

void require_same_value(const OperatorId& id, const comm::Outcome& outcome, LazyText own) {
  if (outcome.disagreement != comm::Disagreement::value) return;
  throw_gathered<std::invalid_argument>(id.rank_set, id.name + ": the ranks differ", own());
}

void throw_errors(const OperatorId& id, const std::string& tensor, const GlobalStructure& structure) {
  for (std::size_t r = 0; r < structure.size(); ++r) {
    if (structure[r].error_kind != Structure::Error::none) throw_error(id, tensor, r, structure[r]);
  }
}

void throw_error(const OperatorId& id, const std::string& tensor, std::size_t rank, const Structure& structure) {
  const auto message =
      id.name + ": the " + tensor + " of rank " + std::to_string(id.rank_set.ranks.at(rank)) + " " + structure.error;
  const bool by_another = static_cast<int>(rank) != id.rank_set.communicator->rank();
  switch (structure.error_kind) {
    case Structure::Error::type:
      base::throw_on_all<base::TypeError>(message, by_another);
    case Structure::Error::state:
      base::throw_on_all<std::runtime_error>(message, by_another);
    default:
      base::throw_on_all<std::invalid_argument>(message, by_another);
  }
}

BackwardAgreement agree_on_backward(const OperatorId& id, bool adjoint, bool has_gradient, Derivatives derivatives,
                                    const Structure& gradient, comm::SendEarly send) {
  if (!id.rank_set.communicator) return {.any = has_gradient, .has_tangent = derivatives.has_tangent};
  if (!votes_on_calls(id.rank_set)) return {.any = true, .has_tangent = derivatives.has_tangent};
  const auto pass = adjoint ? Pass::backward : Pass::forward;
  const auto operation = operation_of(id, pass);
  const auto outcome = vote_on_call(id, pass,
                                    {.value = base::hash_of(gradient.error),
                                     .flags = flags_of(derivatives) | (has_gradient ? kHasGradient : 0U),
                                     .send_early = std::move(send)},
                                    gradient);
  const bool any = outcome.any(kHasGradient);
  if (any && outcome.disagreement == comm::Disagreement::value) {
    throw_gathered(id.rank_set, id.name + ": the backward pass fails on some ranks",
                   gradient.error.empty() ? "could run" : gradient.error);
  }
  return {.any = any, .has_tangent = outcome.any(kHasTangent), .early = early_send_of(outcome)};
}

}  // namespace distdl::agreement
