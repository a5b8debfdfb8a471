#include "comm/waiting.hpp"

#include <pthread.h>

#include <algorithm>
#include <vector>

#include "base/text.hpp"

namespace distdl::comm {

namespace {

struct Threads {
  std::mutex mutex;
  std::vector<Thread*> all;
};

/// Never destroyed: threads may end after everything else.
Threads& threads() {
  static auto* const the_threads = new Threads;
  return *the_threads;
}

}  // namespace

std::string Activity::text() const {
  return name.data() + (number > 0 ? " number " + std::to_string(number) : "") + pass;
}

Thread::Thread() : id(static_cast<std::uint64_t>(pthread_self())) {
  const std::lock_guard lock(threads().mutex);
  threads().all.push_back(this);
}

Thread::~Thread() {
  const std::lock_guard lock(threads().mutex);
  std::erase(threads().all, this);
}

Thread& this_thread() {
  thread_local Thread thread;
  return thread;
}

void for_each_thread(const std::function<void(Thread&)>& look) {
  const std::lock_guard lock(threads().mutex);
  for (auto* const thread : threads().all) look(*thread);
}

Operation::Operation(const Call& call) {
  auto& thread = this_thread();
  const std::lock_guard lock(thread.mutex);
  outer_ = thread.activity;
  auto& activity = thread.activity;
  const auto room = activity.name.size() - 1;
  const auto length = base::cut_to(call.name, room).copy(activity.name.data(), room);
  activity.name.at(length) = '\0';
  activity.number = call.number;
  activity.pass = call.pass;
  activity.hint = call.hint;
  activity.communicator = call.communicator;
  ++thread.depth;
}

Operation::~Operation() {
  auto& thread = this_thread();
  const std::lock_guard lock(thread.mutex);
  if (--thread.depth > 0) thread.activity = outer_;
}

}  // namespace distdl::comm
