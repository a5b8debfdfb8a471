#include "operators/complaints.hpp"

#include <deque>
#include <mutex>

namespace distdl::operators {

namespace {

std::mutex mutex;
std::deque<std::string> complaints;

}  // namespace

void complain(std::string problem) {
  const std::lock_guard lock(mutex);
  complaints.push_back(std::move(problem));
}

std::string take_complaint() {
  const std::lock_guard lock(mutex);
  if (complaints.empty()) return {};
  auto problem = std::move(complaints.front());
  complaints.pop_front();
  return problem;
}

}  // namespace distdl::operators
