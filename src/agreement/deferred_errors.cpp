#include "agreement/deferred_errors.hpp"

#include <deque>
#include <mutex>
#include <utility>

namespace distdl::agreement {

namespace {

struct DeferredErrors {
  std::mutex mutex;
  std::deque<std::string> in_order;
};

/// Never destroyed: detached threads may outlive the end of main.
DeferredErrors& deferred_errors() {
  static auto* const errors = new DeferredErrors;
  return *errors;
}

}  // namespace

void defer_error(std::string problem) {
  auto& [mutex, in_order] = deferred_errors();
  const std::lock_guard lock(mutex);
  in_order.push_back(std::move(problem));
}

std::string take_deferred_error() {
  auto& [mutex, in_order] = deferred_errors();
  const std::lock_guard lock(mutex);
  if (in_order.empty()) return {};
  auto problem = std::move(in_order.front());
  in_order.pop_front();
  return problem;
}

}  // namespace distdl::agreement
