#include "operators/traffic.hpp"

#include <algorithm>
#include <mutex>

namespace distdl::operators {

namespace {

std::mutex mutex;
std::map<std::string, Statistics> by_name;

}  // namespace

void Traffic::exchange(int peer, std::int64_t sent, std::int64_t received) {
  if (std::find(peers.begin(), peers.end(), peer) == peers.end()) peers.push_back(peer);
  if (sent > 0) ++messages;
  bytes_sent += sent;
  bytes_received += received;
}

void count_call(const std::string& name, const Traffic& traffic) {
  const std::lock_guard lock(mutex);
  auto& sums = by_name[name];
  ++sums.calls;
  sums.messages += traffic.messages;
  sums.bytes_sent += traffic.bytes_sent;
  sums.bytes_received += traffic.bytes_received;
}

CountedWaits::~CountedWaits() {
  const std::chrono::duration<double> seconds = comm::waited - before_;
  const std::lock_guard lock(mutex);
  by_name[name_].seconds_waited += seconds.count();
}

std::map<std::string, Statistics> statistics() {
  const std::lock_guard lock(mutex);
  return by_name;
}

void reset_statistics() {
  const std::lock_guard lock(mutex);
  by_name.clear();
}

}  // namespace distdl::operators
