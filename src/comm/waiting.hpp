// How long this thread has waited for others.
#pragma once

#include <chrono>

namespace distdl::comm {

inline thread_local std::chrono::nanoseconds waited{0};

/// Counts the time of its scope as waited: once, for who waits for what was started may do it himself, and wait in it.
class Waiting {
 public:
  Waiting() { ++depth_; }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() {
    if (--depth_ == 0) waited += std::chrono::steady_clock::now() - start_;
  }

 private:
  static inline thread_local int depth_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace distdl::comm
