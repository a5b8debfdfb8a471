#include "operators/voting.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

#include "comm/failure.hpp"
#include "comm/watchdog.hpp"
#include "geometry/text.hpp"
#include "operators/errors.hpp"

namespace distdl::operators {

namespace {

std::atomic<bool> check_structure{true};

// Makes a call another one than the same call on ranks that check the structure. No call has so large a number.
constexpr std::int64_t kUnchecked = std::int64_t{1} << 60;

template <class Error = std::runtime_error>
[[noreturn]] void throw_gathered(const RankSet& rank_set, const std::string& rule, const std::string& mine) {
  const auto texts = comm::gather_texts(*rank_set.communicator, mine);
  const bool in_backward = std::any_of(texts.begin(), texts.end(),
                                       [](const auto& text) { return text.find(", backward") != std::string::npos; });
  throw Error(rule + "; " + geometry::by_rank(rank_set.ranks, texts) + (in_backward ? comm::kBackwardRule : ""));
}

/// What distinguishes a call of an operator from its other calls, for a person who looks for a mistake.
std::string fingerprint(const RankSet& rank_set, const Structure& tensor) {
  if (!comm::debugging()) return {};
  const auto dtype = tensor.error_kind == Structure::Error::none ? c10::toString(tensor.dtype) : "an error";
  return ", call " + std::to_string(rank_set.communicator->votes()) + " on these ranks, with " + dtype + " " +
         geometry::text(tensor.sizes);
}

}  // namespace

void set_structure_check(bool on) { check_structure = on; }
bool structure_check() { return check_structure || comm::debugging(); }
bool votes_on_calls(const RankSet& rank_set) { return structure_check() || !rank_set.communicator->unchecked(); }

comm::Outcome vote(const RankSet& rank_set, const comm::Ballot& ballot, LazyText description) {
  const auto outcome = comm::vote(*rank_set.communicator, ballot);
  if (!outcome.any_out_of_step && outcome.same_call) return outcome;
  const auto mine = description() + comm::at_line(comm::this_thread().id);
  if (!outcome.any_out_of_step) throw_gathered(rank_set, "the ranks do not make the same call", mine);
  const auto why = comm::out_of_step();
  throw_gathered(rank_set,
                 "an earlier call failed in its middle on some ranks, so that its messages would be taken for those of "
                 "other calls; start the program again, from its last checkpoint",
                 why.empty() ? mine : why);
}

comm::Outcome vote_on_call(const OperatorId& id, Pass pass, const OwnBallot& mine, const Structure& tensor) {
  comm::Ballot ballot;
  const bool unchecked = !structure_check();
  ballot.call = id.call(pass) + (unchecked ? kUnchecked : 0);
  ballot.value = mine.value;
  ballot.change = mine.change;
  ballot.requires_grad = mine.derivatives.requires_grad;
  ballot.has_tangent = mine.derivatives.has_tangent;
  ballot.grad_disabled = !records_gradients();
  ballot.told = mine.told;
  ballot.compiled = mine.compiled;
  auto& ahead = id.ahead.at(static_cast<std::size_t>(pass));
  ballot.could_send = static_cast<bool>(mine.send);
  if (ballot.could_send && ahead.sends()) ballot.send = mine.send;
  const CountedWaits waits(id.counter(pass == Pass::backward));
  const auto outcome = vote(id.rank_set, ballot, [&] {
    return id.text(pass) + fingerprint(id.rank_set, tensor) + (unchecked ? ", without the structure check" : "");
  });
  id.rank_set.communicator->set_unchecked(unchecked);
  ahead.learn(outcome);
  require_same_mode(id, outcome.any_requires_grad, outcome.any_grad_disabled);
  return outcome;
}

void require_same_mode(const OperatorId& id, bool any_requires_grad, bool any_grad_disabled) {
  if (!any_requires_grad || !any_grad_disabled) return;
  throw_gathered(id.rank_set,
                 id.name +
                     ": gradients are asked for on some ranks and disabled on others; enter torch.no_grad "
                     "(or pass create_graph) on all ranks or on none",
                 records_gradients() ? "enabled" : "disabled");
}

void require_same_value(const OperatorId& id, const comm::Outcome& outcome, LazyText mine) {
  if (!outcome.same_value) throw_gathered<std::invalid_argument>(id.rank_set, id.name + ": the ranks differ", mine());
}

void throw_errors(const OperatorId& id, const std::string& tensor, const GlobalStructure& structure) {
  for (std::size_t r = 0; r < structure.size(); ++r) {
    if (structure[r].error_kind != Structure::Error::none) throw_error(id, tensor, r, structure[r]);
  }
}

void throw_error(const OperatorId& id, const std::string& tensor, std::size_t rank, const Structure& structure) {
  const auto message =
      id.name + ": the " + tensor + " of rank " + std::to_string(id.rank_set.ranks.at(rank)) + " " + structure.error;
  switch (structure.error_kind) {
    case Structure::Error::type:
      throw TypeError(message);
    case Structure::Error::state:
      throw std::runtime_error(message);
    default:
      throw std::invalid_argument(message);
  }
}

Ahead ahead_of(const comm::Outcome& outcome) { return outcome.ahead ? Ahead{*outcome.ahead, true} : Ahead{}; }

BackwardAgreement agree_on_backward(const OperatorId& id, bool adjoint, bool has_gradient, Derivatives derivatives,
                                    const Structure& gradient, comm::SendAhead send) {
  if (!id.rank_set.communicator) return {has_gradient, derivatives.has_tangent, {}};
  if (!votes_on_calls(id.rank_set)) return {true, derivatives.has_tangent, {}};
  const auto pass = adjoint ? Pass::backward : Pass::forward;
  const auto operation = operation_of(id, pass);
  const auto change = has_gradient ? comm::Change::structure : comm::Change::none;
  const OwnBallot mine{change, comm::value_of(gradient.error), derivatives, 0, false, std::move(send)};
  const auto outcome = vote_on_call(id, pass, mine, gradient);
  const bool any = outcome.change != comm::Change::none;
  if (any && !outcome.same_value) {
    throw_gathered(id.rank_set, id.name + ": the backward pass fails on some ranks",
                   gradient.error.empty() ? "could run" : gradient.error);
  }
  return {any, outcome.any_has_tangent, ahead_of(outcome)};
}

}  // namespace distdl::operators
