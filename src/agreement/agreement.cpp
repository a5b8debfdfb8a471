#include "agreement/agreement.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "agreement/deferred_errors.hpp"

namespace distdl::agreement {

Change Agreement::change_of(std::span<const Structure> tensors) const {
  if (!agreed()) return Change::structure;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].error_kind != Structure::Error::none || structures_[i][my_rank()] != tensors[i]) {
      return Change::structure;
    }
  }
  return Change::none;
}

const GlobalStructure& Agreement::structure(std::size_t tensor) const {
  static const auto* const none = new GlobalStructure;  // never destroyed: threads may outlive the end of main
  return agreed() ? structures_.at(tensor) : *none;
}

void Agreement::forget() {
  structures_.clear();
  memory_.forget();
}

Agreement::Result Agreement::agree(std::span<const Structure> tensors, comm::Ballot ballot, LazyText own, Pass pass) {
  memory_.forget();
  ballot.flags |= flags_of(change_of(tensors));
  if (!votes_on_calls(id_->rank_set) && agreed()) return agree_unchecked(tensors, ballot);
  const auto operation = operation_of(*id_, pass);
  if (agreement::change_of(ballot.flags) == Change::structure) ballot.send_early = {};
  const auto outcome = vote_on_call(*id_, pass, std::move(ballot), tensors.front());
  const auto change = agreement::change_of(outcome.flags);
  Gathered gathered;
  if (change == Change::structure) {
    structures_.clear();  // so that after an error the next call agrees anew
    gathered = gather(id_->rank_set, {tensors.begin(), tensors.end()});
    throw_errors_of(gathered);  // first: a rank that met an error may have nothing of its own to compare
  }
  require_same_value(*id_, outcome, own);
  if (change == Change::structure) structures_ = std::move(gathered.tensors);
  derivatives_ = derivatives_of(outcome.flags);
  return {.change = change,
          .derivatives = derivatives_,
          .broadcast = outcome.broadcast,
          .any_compiled = outcome.any(kCompiled),
          .early = early_send_of(outcome)};
}

Agreement::Result Agreement::agree_unchecked(std::span<const Structure> tensors, const comm::Ballot& ballot) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].error_kind != Structure::Error::none) throw_error(*id_, names_[i], my_rank(), tensors[i]);
  }
  if (agreement::change_of(ballot.flags) == Change::structure) {
    throw std::runtime_error(id_->name + ": the " + names_.front() + " of rank " +
                             std::to_string(id_->rank_set.ranks[my_rank()]) +
                             " changed while the structure check is off; pass it on for this call");
  }
  return {.change = Change::none, .derivatives = derivatives_};
}

Agreement::Result Agreement::agree_or_follow(Structure own, Derivatives derivatives, comm::SendEarly send) {
  const auto* const layer = memory_.enter(id_->rank_set);
  if (layer != nullptr) return follow(*layer, own, derivatives);
  take_deferred_error_to(own);
  return agree({&own, 1}, {.flags = flags_of(derivatives), .send_early = std::move(send)},
               [] { return std::string(); });
}

void Agreement::take_deferred_error_to(Structure& tensor) {
  if (tensor.error_kind != Structure::Error::none || !structure_check()) return;
  if (auto error = take_deferred_error(); !error.empty()) tensor.refuse(Structure::Error::state, std::move(error));
}

Agreement::Result Agreement::follow(const LayerCall& layer, const Structure& own, Derivatives derivatives) {
  comm::refuse_abandoned(*id_->rank_set.communicator);
  // All of its ranks make this call, so the tag is the same on them.
  const EarlySend early{.tag = id_->rank_set.communicator->next_tag_within_layers()};
  if (memory_.remembers(layer.generation)) {
    require_unchanged(own, derivatives);
    return {.change = Change::none, .derivatives = derivatives_, .early = early};
  }
  const auto operation = operation_of(*id_, Pass::forward);
  const CountedWaits waits(id_->counter(false));
  if (id_->rank_set.communicator->size() > 1) id_->rank_set.communicator->count_vote();
  auto known = std::move(structures_);
  forget();
  auto gathered = gather(id_->rank_set, {own}, derivatives);
  throw_errors_of(gathered);
  if (gathered.derivatives.requires_grad && gathered.grad_disabled) throw_mixed_modes(*id_);
  const auto change = known == gathered.tensors ? Change::none : Change::structure;
  structures_ = std::move(gathered.tensors);
  derivatives_ = gathered.derivatives;
  memory_.remember(layer.generation);
  return {.change = change, .derivatives = derivatives_, .early = early};
}

void Agreement::require_unchanged(const Structure& own, Derivatives derivatives) const {
  const auto refuse = [&](const std::string& what) {
    throw std::runtime_error(id_->name + ": the " + names_.front() + " of rank " +
                             std::to_string(id_->rank_set.ranks[my_rank()]) + " " + what +
                             ", though nothing changed that the layer around it agreed on; give the layer's agreement "
                             "all that this depends on");
  };
  if (own.error_kind != Structure::Error::none) throw_error(*id_, names_.front(), my_rank(), own);
  if (structures_.front()[my_rank()] != own) refuse("has another shape, dtype or device than at the last call");
  if (!structure_check()) return;  // then derivatives are those of the last vote
  if ((derivatives.requires_grad && !derivatives_.requires_grad) ||
      (derivatives.has_tangent && !derivatives_.has_tangent)) {
    refuse("takes part in differentiation, unlike at the last call");
  }
}

void Agreement::throw_errors_of(const Gathered& gathered) const {
  for (std::size_t i = 0; i < gathered.tensors.size(); ++i) throw_errors(*id_, names_[i], gathered.tensors[i]);
}

}  // namespace distdl::agreement
