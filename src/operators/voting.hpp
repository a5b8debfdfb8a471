// How the ranks of an operator find out, before data moves, that all of them make the same call.
#pragma once

#include <c10/util/FunctionRef.h>

#include <optional>
#include <string>

#include "comm/vote.hpp"
#include "operators/derivatives.hpp"
#include "operators/operator_id.hpp"
#include "operators/structure.hpp"

namespace distdl::operators {

/// Every call of an operator is checked by a vote unless this is off: see Agreement::agree.
void set_structure_check(bool on);
bool structure_check();

/// Whether a call of these ranks votes: always while the structure check is on. Where it was turned off, the first call
/// on the ranks votes as well, so that all of them hear it from each other.
bool votes_on_calls(const RankSet& rank_set);

/// A text that may never be needed.
using LazyText = c10::function_ref<std::string()>;

/// Makes sure that all ranks of the set make the same call, which `description` names, and that none is out of step.
/// Otherwise throws on all of them, and tells what each one calls. Collective.
comm::Outcome vote(const RankSet& rank_set, const comm::Ballot& ballot, LazyText description);

/// What one rank brings to the vote of an operator.
struct OwnBallot {
  comm::Change change = comm::Change::none;
  std::int64_t value = 0;  // of what has to be equal on all ranks
  Derivatives derivatives;
  std::int64_t told = 0;  // to the others, by one rank
  bool compiled = false;
  comm::SendAhead send = {};  // ahead of the vote; empty where this rank cannot
};

/// vote() for a call of an operator with this tensor. It throws on all ranks too if some ask for gradients and others
/// disabled them. Collective.
comm::Outcome vote_on_call(const OperatorId& id, Pass pass, const OwnBallot& mine, const Structure& tensor);

/// Throws on all ranks if gradients are asked for on any and disabled on any. Collective where it throws.
void require_same_mode(const OperatorId& id, bool any_requires_grad, bool any_grad_disabled);

/// Throws on all ranks if the values that they voted with differ. Collective where it throws.
void require_same_value(const OperatorId& id, const comm::Outcome& outcome, LazyText mine);

/// Throws the first rank's error, if any has one: the same on all ranks. `tensor` is what messages call it.
void throw_errors(const OperatorId& id, const std::string& tensor, const GlobalStructure& structure);
/// Throws the error of one rank.
[[noreturn]] void throw_error(const OperatorId& id, const std::string& tensor, std::size_t rank,
                              const Structure& structure);

/// Makes sure that all ranks of the id are in the same backward pass, and are asked alike for a gradient that can be
/// differentiated again. Otherwise throws on all of them, and so it does if some ranks have a problem with theirs that
/// others do not have. Collective.
/// How the messages of a call travel after the vote on it.
Ahead ahead_of(const comm::Outcome& outcome);

struct BackwardAgreement {
  bool any;          // whether any rank has a gradient
  bool has_tangent;  // whether any rank's gradient has a forward-mode derivative
  Ahead ahead;       // of the call's messages
};
BackwardAgreement agree_on_backward(const OperatorId& id, bool adjoint, bool has_gradient, Derivatives derivatives,
                                    const Structure& gradient, comm::SendAhead send);

}  // namespace distdl::operators
