#include "agreement/traffic.hpp"

#include <mutex>

namespace distdl::agreement {

namespace {

struct Counters {
  std::mutex mutex;
  std::map<std::string, Counter> by_name;
};

/// Never destroyed: threads count until the end.
Counters& counters() {
  static auto* const all = new Counters;
  return *all;
}

}  // namespace

void Traffic::exchange(int peer, std::int64_t sent, std::int64_t received) {
  peers.insert(peers.end(), peer);  // at the end at once, where they come in order
  if (sent > 0) ++messages;
  bytes_sent += sent;
  bytes_received += received;
}

void Counter::count(const Traffic& traffic, std::int64_t calls) {
  calls_ += calls;
  messages_ += traffic.messages;
  bytes_sent_ += traffic.bytes_sent;
  bytes_received_ += traffic.bytes_received;
}

Statistics Counter::sums() const {
  const std::chrono::duration<double> waited = std::chrono::nanoseconds(waited_);
  return {.calls = calls_,
          .messages = messages_,
          .bytes_sent = bytes_sent_,
          .bytes_received = bytes_received_,
          .seconds_waited = waited.count()};
}

void Counter::reset() { calls_ = messages_ = bytes_sent_ = bytes_received_ = waited_ = 0; }

Counter& counter(const std::string& name) {
  auto& [mutex, by_name] = counters();
  const std::lock_guard lock(mutex);
  return by_name[name];
}

std::map<std::string, Statistics> statistics() {
  auto& [mutex, by_name] = counters();
  const std::lock_guard lock(mutex);
  std::map<std::string, Statistics> counted;
  for (const auto& [name, counter] : by_name) {
    const auto sums = counter.sums();
    if (sums.calls > 0 || sums.seconds_waited > 0) counted.emplace(name, sums);
  }
  return counted;
}

void reset_statistics() {
  auto& [mutex, by_name] = counters();
  const std::lock_guard lock(mutex);
  for (auto& [name, counter] : by_name) counter.reset();
}

}  // namespace distdl::agreement
