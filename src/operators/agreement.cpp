#include "operators/agreement.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "operators/complaints.hpp"

namespace distdl::operators {

using comm::Change;

comm::Change Agreement::change_of(std::span<const Structure> mine) const {
  if (!agreed()) return Change::structure;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (mine[i].error_kind != Structure::Error::none || structures_[i][my_rank()] != mine[i]) return Change::structure;
  }
  return Change::none;
}

const GlobalStructure& Agreement::structure(std::size_t tensor) const {
  static const GlobalStructure none;
  return agreed() ? structures_.at(tensor) : none;
}

void Agreement::forget() {
  structures_.clear();
  memory_.forget();
}

Agreement::Result Agreement::agree(const Brought& mine, LazyText own, Pass pass) {
  memory_.forget();
  if (!votes_on_calls(id_->rank_set) && agreed()) return agree_unchecked(mine);
  const auto operation = operation_of(*id_, pass);
  const auto change = std::max(change_of(mine.tensors), mine.change);
  const OwnBallot ballot{change,    mine.value,    mine.derivatives,
                         mine.told, mine.compiled, change == Change::structure ? comm::SendAhead() : mine.send};
  const auto outcome = vote_on_call(*id_, pass, ballot, mine.tensors.front());
  Gathered gathered;
  if (outcome.change == Change::structure) {
    structures_.clear();  // so that after an error the next call agrees anew
    gathered = gather(id_->rank_set, mine.tensors);
    throw_errors_of(gathered);  // first: a rank that met an error may have nothing of its own to compare
  }
  require_same_value(*id_, outcome, own);
  if (outcome.change == Change::structure) structures_ = std::move(gathered.tensors);
  derivatives_ = {outcome.any_requires_grad, outcome.any_has_tangent};
  return {outcome.change, derivatives_, outcome.told, outcome.any_compiled, ahead_of(outcome)};
}

Agreement::Result Agreement::agree_unchecked(const Brought& mine) const {
  for (std::size_t i = 0; i < mine.tensors.size(); ++i) {
    const auto& tensor = mine.tensors[i];
    if (tensor.error_kind != Structure::Error::none) throw_error(*id_, names_[i], my_rank(), tensor);
  }
  if (std::max(change_of(mine.tensors), mine.change) == Change::structure) {
    throw std::runtime_error(id_->name + ": the " + names_.front() + " of rank " +
                             std::to_string(id_->rank_set.ranks[my_rank()]) +
                             " changed while the structure check is off; pass it on for this call");
  }
  return {Change::none, derivatives_};
}

Agreement::Result Agreement::agree_or_follow(Structure mine, Derivatives derivatives, comm::SendAhead send) {
  const auto* const layer = memory_.enclosing(id_->rank_set);
  if (layer != nullptr) return follow(*layer, mine, derivatives);
  take_complaint_to(mine);
  return agree({.tensors = {&mine, 1}, .derivatives = derivatives, .send = std::move(send)},
               [] { return std::string(); });
}

void Agreement::take_complaint_to(Structure& tensor) {
  if (tensor.error_kind != Structure::Error::none || !structure_check()) return;
  if (auto complaint = take_complaint(); !complaint.empty()) tensor.refuse(Structure::Error::state, complaint);
}

Agreement::Result Agreement::follow(const LayerCall& layer, const Structure& mine, Derivatives derivatives) {
  comm::refuse_abandoned(*id_->rank_set.communicator);
  // All of its ranks make this call, so the tag is the same on them.
  const Ahead ahead{.tag = id_->rank_set.communicator->next_tag_within_layers()};
  if (memory_.remembers(layer.epoch)) {
    require_unchanged(mine, derivatives);
    return {.change = Change::none, .derivatives = derivatives_, .ahead = ahead};
  }
  const auto operation = operation_of(*id_, Pass::forward);
  const CountedWaits waits(id_->counter(false));
  if (id_->rank_set.communicator->size() > 1) id_->rank_set.communicator->count_vote();
  auto known = std::move(structures_);
  forget();
  auto gathered = gather(id_->rank_set, {&mine, 1}, derivatives);
  throw_errors_of(gathered);
  require_same_mode(*id_, gathered.derivatives.requires_grad, gathered.grad_disabled);
  const auto change = known == gathered.tensors ? Change::none : Change::structure;
  structures_ = std::move(gathered.tensors);
  derivatives_ = gathered.derivatives;
  memory_.remember(layer.epoch);
  return {.change = change, .derivatives = derivatives_, .ahead = ahead};
}

void Agreement::require_unchanged(const Structure& mine, Derivatives derivatives) const {
  const auto refuse = [&](const std::string& what) {
    throw std::runtime_error(id_->name + ": the " + names_.front() + " of rank " +
                             std::to_string(id_->rank_set.ranks[my_rank()]) + " " + what +
                             ", though nothing changed that the layer around it agreed on; give the layer's agreement "
                             "all that this depends on");
  };
  if (mine.error_kind != Structure::Error::none) throw_error(*id_, names_.front(), my_rank(), mine);
  if (structures_.front()[my_rank()] != mine) refuse("has another shape, dtype or device than at the last call");
  if (!structure_check()) return;  // then derivatives are those of the last vote
  if ((derivatives.requires_grad && !derivatives_.requires_grad) ||
      (derivatives.has_tangent && !derivatives_.has_tangent)) {
    refuse("takes part in differentiation, unlike at the last call");
  }
}

void Agreement::throw_errors_of(const Gathered& gathered) const {
  for (std::size_t i = 0; i < gathered.tensors.size(); ++i) throw_errors(*id_, names_[i], gathered.tensors[i]);
}

}  // namespace distdl::operators
