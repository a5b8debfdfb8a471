#include "agreement/layer_call.hpp"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

#include "comm/watchdog.hpp"

namespace distdl::agreement {

namespace {

std::atomic<std::int64_t> generations{0}, calls{0};

/// The outermost first.
thread_local std::vector<LayerCall> under_way;

}  // namespace

std::int64_t new_generation() { return ++generations; }

void begin_layer_call(const void* agreement, std::shared_ptr<const OperatorId> id, std::int64_t generation,
                      comm::Lock lock, SentBeside sent) {
  under_way.push_back({.agreement = agreement,
                       .id = std::move(id),
                       .number = ++calls,
                       .generation = generation,
                       .lock = std::move(lock),
                       .sent = sent});
}

std::optional<EarlySend> take_sent(const LayerCall& layer, const OperatorId& id) {
  const auto call = std::ranges::find(under_way, layer.number, &LayerCall::number);
  if (call == under_way.end()) return std::nullopt;
  auto& [ids, tag] = call->sent;
  const auto sent = std::ranges::find(ids, &id);
  if (sent == ids.end()) return std::nullopt;
  *sent = nullptr;
  return EarlySend{.tag = sent == ids.begin() ? tag : comm::second_tag(tag), .sent = true};
}

void end_layer_call(const void* agreement) {
  const auto innermost = std::find_if(under_way.rbegin(), under_way.rend(),
                                      [&](const LayerCall& call) { return call.agreement == agreement; });
  if (innermost == under_way.rend()) return;
  under_way.erase(std::prev(innermost.base()), under_way.end());
}

bool in_layer_call() { return !under_way.empty(); }

void change_generation(const void* agreement, std::int64_t generation) {
  for (auto& call : under_way) {
    if (call.agreement == agreement) call.generation = generation;
  }
}

const LayerCall* LayerMemory::enter(const RankSet& ranks) {
  const LayerCall* layer = nullptr;
  if (!comm::debugging()) {
    const auto innermost = std::find_if(under_way.rbegin(), under_way.rend(),
                                        [&](const LayerCall& call) { return call.id->rank_set.covers(ranks); });
    if (innermost != under_way.rend()) layer = &*innermost;
  }
  if (layer != nullptr && std::find(calls_.begin(), calls_.end(), layer->number) != calls_.end()) layer = nullptr;
  calls_.clear();
  for (const auto& call : under_way) calls_.push_back(call.number);
  return layer;
}

}  // namespace distdl::agreement
