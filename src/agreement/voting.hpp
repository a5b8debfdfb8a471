// How the ranks of an operator find out, before data moves, that all of them make the same call.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <string>

#include "agreement/derivatives.hpp"
#include "agreement/early_send.hpp"
#include "agreement/operator_id.hpp"
#include "agreement/structure.hpp"
#include "comm/vote.hpp"

namespace distdl::agreement {

/// Every call of an operator is checked by a vote unless this is off: see Agreement::agree.
void set_structure_check(bool on);
bool structure_check();

/// Whether a call of these ranks votes: always while the structure check is on. Where it was turned off, the first call
/// on the ranks votes as well, so that all of them hear it from each other.
bool votes_on_calls(const RankSet& rank_set);

/// The meanings of a ballot's flags.
enum Flag : std::uint32_t {
  kDerivativesChanged = 1 << 0,  // since the last call; see Change
  kStructureChanged = 1 << 1,
  kRequiresGrad = 1 << 2,  // the input takes part in differentiation
  kHasTangent = 1 << 3,    // the input has a forward-mode derivative
  kGradDisabled = 1 << 4,  // the rank runs under no_grad
  kCompiled = 1 << 5,      // the rank calls from a compiled program
  kHasGradient = 1 << 6,   // the backward pass has a gradient
  kUnlikeFirst = 1 << 8,   // the call is unlike the first known one; then come those for the others: see KnownCalls
};
inline constexpr std::size_t kKnownCalls = 16;

/// How much is different from the last call, on this rank or on any.
enum class Change { none, derivatives, structure };

std::uint32_t flags_of(Derivatives derivatives);
Change change_of(std::uint32_t flags);  // the largest
Derivatives derivatives_of(std::uint32_t flags);

/// A text that may never be needed.
using LazyText = c10::function_ref<std::string()>;

/// Makes sure that all ranks of the set make the same call, which `description` names, and that none is out of step.
/// Otherwise throws on all of them, and tells what each rank calls. Collective.
comm::Outcome vote(const RankSet& rank_set, const comm::Ballot& ballot, LazyText description);

/// vote() for a call of an operator with this tensor, which fills in the ballot's call and whether gradients are
/// disabled. Throws on all ranks too if some ask for gradients and others disabled them. Collective.
comm::Outcome vote_on_call(const OperatorId& id, Pass pass, comm::Ballot ballot, const Structure& tensor);

/// Throws on all ranks, because gradients are asked for on some and disabled on others. Collective.
[[noreturn]] void throw_mixed_modes(const OperatorId& id);

/// Throws on all ranks if the values of their ballots differ. Collective where it throws.
void require_same_value(const OperatorId& id, const comm::Outcome& outcome, LazyText own);

/// Throws the error of the first rank that has an error: the same on all ranks. `tensor` is what messages call it.
void throw_errors(const OperatorId& id, const std::string& tensor, const GlobalStructure& structure);
/// Throws the error of one rank.
[[noreturn]] void throw_error(const OperatorId& id, const std::string& tensor, std::size_t rank,
                              const Structure& structure);

struct BackwardAgreement {
  bool any;              // whether any rank has a gradient
  bool has_tangent;      // whether any rank's gradient has a forward-mode derivative
  EarlySend early = {};  // of the call's messages
};
/// Makes sure that all ranks of the id are in the same backward pass, and are asked alike for a gradient that can be
/// differentiated again. Otherwise throws on all of them, and so it does if some ranks have a problem with their
/// gradients that others do not have. Collective.
BackwardAgreement agree_on_backward(const OperatorId& id, bool adjoint, bool has_gradient, Derivatives derivatives,
                                    const Structure& gradient, comm::SendEarly send);

}  // namespace distdl::agreement
