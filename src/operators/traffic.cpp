#include "operators/traffic.hpp"

#include <algorithm>
#include <mutex>

namespace distdl::operators {

namespace {

std::mutex mutex;

std::map<std::string, Counter>& counters() {  // never destroyed: threads count until the end
  static auto* const by_name = new std::map<std::string, Counter>;
  return *by_name;
}

}  // namespace

void Traffic::exchange(int peer, std::int64_t sent, std::int64_t received) {
  if (std::find(peers.begin(), peers.end(), peer) == peers.end()) peers.push_back(peer);
  if (sent > 0) ++messages;
  bytes_sent += sent;
  bytes_received += received;
}

void Counter::count(const Traffic& traffic) {
  ++calls_;
  messages_ += traffic.messages;
  bytes_sent_ += traffic.bytes_sent;
  bytes_received_ += traffic.bytes_received;
}

Statistics Counter::sums() const {
  const std::chrono::duration<double> waited = std::chrono::nanoseconds(waited_);
  return {calls_, messages_, bytes_sent_, bytes_received_, waited.count()};
}

void Counter::reset() { calls_ = messages_ = bytes_sent_ = bytes_received_ = waited_ = 0; }

Counter& counter(const std::string& name) {
  const std::lock_guard lock(mutex);
  return counters()[name];
}

std::map<std::string, Statistics> statistics() {
  const std::lock_guard lock(mutex);
  std::map<std::string, Statistics> counted;
  for (const auto& [name, counter] : counters()) {
    const auto sums = counter.sums();
    if (sums.calls > 0 || sums.seconds_waited > 0) counted.emplace(name, sums);
  }
  return counted;
}

void reset_statistics() {
  const std::lock_guard lock(mutex);
  for (auto& [name, counter] : counters()) counter.reset();
}

}  // namespace distdl::operators
