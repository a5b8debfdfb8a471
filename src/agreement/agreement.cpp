#include "agreement/agreement.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "agreement/deferred_errors.hpp"

namespace distdl::agreement {

Agreement::Agreement(std::shared_ptr<const OperatorId> id, std::vector<std::string> tensors)
    : id_(std::move(id)), names_(std::move(tensors)), calls_(id_->rank_set.communicator ? my_rank() : 0) {}

const LayerCall* Agreement::enter_layer() {
  const auto* const layer = memory_.enter(id_->rank_set);
  if (layer == nullptr) forget_layers();
  return layer;
}

std::optional<bool> Agreement::recall(const LayerCall& layer, std::span<const Structure> tensors, OwnFacts facts) {
  const auto place = calls_.place_of(layer);
  if (!place) return std::nullopt;
  // Without the check, other ranks do not hear of changed derivatives.
  if (!structure_check()) facts.differentiation = calls_.at(*place).facts.differentiation;
  if (!calls_.is_like(*place, tensors, facts)) return std::nullopt;
  return calls_.go_back_to(*place);
}

const GlobalStructure& Agreement::structure(std::size_t tensor) const {
  static const auto* const none = new GlobalStructure;  // never destroyed: threads may outlive the end of main
  return calls_.agreed() ? calls_.last().structures->at(tensor) : *none;
}

void Agreement::forget() {
  calls_.forget();
  calls_.forget_layers();
}

Agreement::Result Agreement::agree(std::span<const Structure> tensors, comm::Ballot ballot, LazyText own, Pass pass,
                                   OwnFacts facts) {
  ballot.flags |= calls_.flags_for(tensors, facts);
  if (!votes_on_calls(id_->rank_set) && calls_.agreed()) return agree_unchecked(tensors, ballot);
  const auto operation = operation_of(*id_, pass);
  if (agreement::change_of(ballot.flags) == Change::structure) ballot.send_early = {};
  const auto outcome = vote_on_call(*id_, pass, std::move(ballot), tensors.front());
  const auto change = agreement::change_of(outcome.flags);
  if (change == Change::structure) calls_.forget();  // so that after an error the next call agrees anew
  const auto place = calls_.place_of(outcome.flags);
  auto structures = calls_.empty() ? nullptr : calls_.last().structures;
  if (!place && change == Change::structure) {
    auto gathered = gather(id_->rank_set, {tensors.begin(), tensors.end()});
    throw_errors_of(gathered);  // first: a rank that met an error may have nothing of its own to compare
    structures = calls_.shared(std::move(gathered.tensors));
  }
  require_same_value(*id_, outcome, own);
  if (place) {
    calls_.go_back_to(*place);
  } else {
    calls_.add({.structures = std::move(structures),
                .derivatives = derivatives_of(outcome.flags),
                .compiled = outcome.any(kCompiled),
                .facts = facts,
                .generation = new_generation()});
  }
  return {
      .change = change, .derivatives = derivatives(), .broadcast = outcome.broadcast, .early = early_send_of(outcome)};
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
  return {.change = Change::none, .derivatives = derivatives()};
}

Agreement::Result Agreement::agree_or_follow(Structure own, Derivatives derivatives, comm::SendEarly send) {
  const auto* const layer = enter_layer();
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
  const auto sent = take_sent(layer, *id_);
  const auto early = sent ? *sent : EarlySend{.tag = id_->rank_set.communicator->next_tag_within_layers()};
  const auto result = [&](bool changed) -> Result {
    return {.change = changed ? Change::structure : Change::none, .derivatives = this->derivatives(), .early = early};
  };
  if (const auto place = calls_.place_of(layer)) {
    const bool changed = calls_.go_back_to(*place);
    require_unchanged(own, derivatives);
    return result(changed);
  }
  const auto operation = operation_of(*id_, Pass::forward);
  const CountedWaits waits(id_->counter(false));
  if (id_->rank_set.communicator->size() > 1) id_->rank_set.communicator->count_vote();
  auto gathered = gather(id_->rank_set, {own}, derivatives);
  throw_errors_of(gathered);
  if (gathered.derivatives.requires_grad && gathered.grad_disabled) throw_mixed_modes(*id_);
  return result(calls_.add({.structures = calls_.shared(std::move(gathered.tensors)),
                            .derivatives = gathered.derivatives,
                            .compiled = false,
                            .facts = {},
                            .generation = new_generation(),
                            .layer = layer.generation}));
}

void Agreement::require_unchanged(const Structure& own, Derivatives derivatives) const {
  const auto refuse = [&](const std::string& what) {
    throw std::runtime_error(id_->name + ": the " + names_.front() + " of rank " +
                             std::to_string(id_->rank_set.ranks[my_rank()]) + " " + what +
                             ", though nothing changed that the layer around it agreed on; give the layer's agreement "
                             "all that this depends on");
  };
  if (own.error_kind != Structure::Error::none) throw_error(*id_, names_.front(), my_rank(), own);
  if (structure()[my_rank()] != own) refuse("has another shape, dtype or device than at the last call");
  if (!structure_check()) return;  // then derivatives are those of the last vote
  const auto agreed = this->derivatives();
  if ((derivatives.requires_grad && !agreed.requires_grad) || (derivatives.has_tangent && !agreed.has_tangent)) {
    refuse("takes part in differentiation, unlike at the last call");
  }
}

void Agreement::throw_errors_of(const Gathered& gathered) const {
  for (std::size_t i = 0; i < gathered.tensors.size(); ++i) throw_errors(*id_, names_[i], gathered.tensors[i]);
}

}  // namespace distdl::agreement
