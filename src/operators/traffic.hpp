// What an application of an operator sends and receives, and the sums of it over a program.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/waiting.hpp"

namespace distdl::operators {

/// The messages of one application on this rank, as if each two ranks sent each other directly what they need of each
/// other, in the dtype of the tensor. MPI's collectives may cut and route it otherwise.
struct Traffic {
  std::vector<std::int64_t> peers;  // as the user counts ranks
  std::int64_t messages = 0;        // sent
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;

  void exchange(int peer, std::int64_t sent, std::int64_t received);
};

/// The applications of operators of one name on this rank.
struct Statistics {
  std::int64_t calls = 0;
  std::int64_t messages = 0;
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_received = 0;
  double seconds_waited = 0.0;
};

/// Adds to the statistics of a name.
void count_call(const std::string& name, const Traffic& traffic);

/// Adds what this thread waits in its scope to the statistics of a name.
class CountedWaits {
 public:
  explicit CountedWaits(std::string name) : name_(std::move(name)) {}
  CountedWaits(const CountedWaits&) = delete;
  CountedWaits& operator=(const CountedWaits&) = delete;
  ~CountedWaits();

 private:
  std::string name_;
  std::chrono::nanoseconds before_ = comm::waited;
};

std::map<std::string, Statistics> statistics();
void reset_statistics();

}  // namespace distdl::operators
