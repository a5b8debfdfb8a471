// How long this thread has waited for others.
#pragma once

#include <chrono>

namespace distdl::comm {

inline thread_local std::chrono::nanoseconds waited{0};

/// Counts the time of its scope as waited.
class Waiting {
 public:
  Waiting() = default;
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() { waited += std::chrono::steady_clock::now() - start_; }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace distdl::comm
