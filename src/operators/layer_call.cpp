#include "operators/layer_call.hpp"

#include <algorithm>
#include <atomic>
#include <iterator>

#include "comm/watchdog.hpp"

namespace distdl::operators {

namespace {

std::atomic<std::int64_t> epochs{0}, calls{0};

/// The outermost first.
thread_local std::vector<LayerCall> under_way;

}  // namespace

std::int64_t new_epoch() { return ++epochs; }

void begin_layer_call(const void* agreement, std::shared_ptr<const OperatorId> id, std::int64_t epoch,
                      comm::Lock lock) {
  under_way.push_back({agreement, std::move(id), ++calls, epoch, std::move(lock)});
}

void end_layer_call(const void* agreement) {
  const auto innermost = std::find_if(under_way.rbegin(), under_way.rend(),
                                      [&](const LayerCall& call) { return call.agreement == agreement; });
  if (innermost == under_way.rend()) return;
  under_way.erase(std::prev(innermost.base()), under_way.end());
}

bool in_layer_call() { return !under_way.empty(); }

void change_epoch(const void* agreement, std::int64_t epoch) {
  for (auto& call : under_way) {
    if (call.agreement == agreement) call.epoch = epoch;
  }
}

const LayerCall* LayerMemory::enclosing(const RankSet& ranks) {
  const LayerCall* found = nullptr;
  if (!comm::debugging()) {
    const auto innermost = std::find_if(under_way.rbegin(), under_way.rend(),
                                        [&](const LayerCall& call) { return call.id->rank_set.covers(ranks); });
    if (innermost != under_way.rend()) found = &*innermost;
  }
  if (found != nullptr && std::find(calls_.begin(), calls_.end(), found->number) != calls_.end()) found = nullptr;
  calls_.clear();
  for (const auto& call : under_way) calls_.push_back(call.number);
  if (found == nullptr) forget();
  return found;
}

}  // namespace distdl::operators
