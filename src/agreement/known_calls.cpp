#include "agreement/known_calls.hpp"

#include <algorithm>
#include <utility>

namespace distdl::agreement {

bool KnownCalls::has_tensors(const KnownCall& call, std::span<const Structure> tensors) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].error_kind != Structure::Error::none || (*call.structures)[i][rank_] != tensors[i]) return false;
  }
  return true;
}

std::uint32_t KnownCalls::flags_for(std::span<const Structure> tensors, OwnFacts facts) const {
  std::uint32_t flags = 0;
  for (std::size_t place = 0; place < calls_.size(); ++place) {
    if (!agreed_ || !is_like(place, tensors, facts)) flags |= kUnlikeFirst << place;
  }
  if (agreed_ && (flags & kUnlikeFirst) == 0) return flags;
  const bool same = agreed_ && facts.options == last().facts.options && has_tensors(last(), tensors);
  return flags | (same ? kDerivativesChanged : kStructureChanged);
}

std::optional<std::size_t> KnownCalls::place_of(std::uint32_t flags) const {
  for (std::size_t place = 0; place < calls_.size(); ++place) {
    const auto& call = calls_[place];
    const bool is_alike = call.derivatives == derivatives_of(flags) && call.compiled == ((flags & kCompiled) != 0);
    if (is_alike && (flags & (kUnlikeFirst << place)) == 0) return place;
  }
  return std::nullopt;
}

std::optional<std::size_t> KnownCalls::place_of(const LayerCall& layer) const {
  const auto found = std::ranges::find(calls_, layer.generation, &KnownCall::layer);
  return found == calls_.end() ? std::nullopt : std::optional(static_cast<std::size_t>(found - calls_.begin()));
}

bool KnownCalls::is_like_last(std::span<const Structure> tensors, OwnFacts facts) const {
  return agreed_ && is_like(0, tensors, facts);
}

bool KnownCalls::is_like(std::size_t place, std::span<const Structure> tensors, OwnFacts facts) const {
  return facts == calls_[place].facts && has_tensors(calls_[place], tensors);
}

bool KnownCalls::is_change(const KnownCall& call) const {
  return !agreed_ || call.structures != last().structures || call.facts.options != last().facts.options;
}

bool KnownCalls::go_back_to(std::size_t place) {
  const bool change = is_change(calls_[place]);
  const auto call = calls_.begin() + static_cast<std::ptrdiff_t>(place);
  std::rotate(calls_.begin(), call, call + 1);
  agreed_ = true;
  return change;
}

bool KnownCalls::add(KnownCall call) {
  const bool change = is_change(call);
  if (calls_.size() == kKnownCalls) calls_.pop_back();
  calls_.insert(calls_.begin(), std::move(call));
  agreed_ = true;
  return change;
}

std::shared_ptr<const Structures> KnownCalls::shared(Structures structures) const {
  const auto known = std::ranges::find_if(calls_, [&](const auto& call) { return *call.structures == structures; });
  return known == calls_.end() ? std::make_shared<const Structures>(std::move(structures)) : known->structures;
}

void KnownCalls::remember(const LayerCall& layer) {
  auto call = last();
  if (call.layer == layer.generation) return;
  call.layer = layer.generation;
  if (last().layer == 0) {
    calls_.front() = std::move(call);
  } else {
    add(std::move(call));
  }
}

void KnownCalls::forget_layers() {
  for (auto& call : calls_) call.layer = 0;
}

}  // namespace distdl::agreement
