// The messages and bytes that operators send and receive: of one application, and in all.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "comm/waiting.hpp"

namespace distdl::agreement {

/// The messages of one application of an operator on this rank, as if each rank sent the data that another one
/// needs directly, in the dtype of the tensor. MPI's collectives may cut and route the data otherwise.
struct Traffic {
  std::set<int> peers = {};   // as the user counts ranks
  std::int64_t messages = 0;  // sent
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;

  void exchange(int peer, std::int64_t sent, std::int64_t received);
};

/// The applications of operators of one name on this rank, or the calls of a function that sends bytes.
struct Statistics {
  std::int64_t calls = 0;
  std::int64_t messages = 0;
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
  double seconds_waited = 0.0;
};

/// Sums over the operators of one name, to which any thread may add. A counter lives for ever.
class Counter {
 public:
  void count(const Traffic& traffic, std::int64_t calls = 1);
  void count_wait(std::chrono::nanoseconds time) { waited_ += time.count(); }

  Statistics sums() const;
  void reset();

 private:
  std::atomic<std::int64_t> calls_ = 0, messages_ = 0, bytes_sent_ = 0, bytes_received_ = 0;
  std::atomic<std::int64_t> waited_ = 0;  // ns
};

/// The counter of a name. Finding it takes a lock, so callers keep the reference.
Counter& counter(const std::string& name);

/// Adds to a counter the time that this thread waits while it lives.
class CountedWaits {
 public:
  explicit CountedWaits(Counter& counter) : counter_(counter) {}
  CountedWaits(const CountedWaits&) = delete;
  CountedWaits& operator=(const CountedWaits&) = delete;
  ~CountedWaits() { counter_.count_wait(comm::waited - before_); }

 private:
  Counter& counter_;
  std::chrono::nanoseconds before_ = comm::waited;
};

/// By name; of the names for which anything was counted.
std::map<std::string, Statistics> statistics();
void reset_statistics();

}  // namespace distdl::agreement
