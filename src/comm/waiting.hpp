// The operation that each thread is in, and how long it has waited for other ranks: for statistics and for the
// watchdog.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace distdl::comm {

class Communicator;

inline thread_local std::chrono::nanoseconds waited{0};

/// The operations in which every rank waits for the last one, however long that takes.
inline constexpr const char* kEndOfProgram = "the end of the program";
inline constexpr const char* kEndOfCell = "the end of a cell";  // of a notebook

/// An operation as its caller describes it: "Repartition number 4".
struct Call {
  std::string_view name;
  std::int64_t number = 0;                     // 0: it has none
  const char* pass = "";                       // a literal
  const char* hint = "";                       // a literal, which is appended to reports about the operation
  const Communicator* communicator = nullptr;  // of all ranks that take part, where that is known
};

/// The same as the watchdog reads it, when the operator may be gone.
struct Activity {
  static constexpr std::size_t kNameSize = 96;

  std::array<char, kNameSize> name{};  // a copy, cut to fit
  std::int64_t number = 0;
  const char* pass = "";
  const char* hint = "";
  const Communicator* communicator = nullptr;

  std::string text() const;
  bool at_end() const {
    const std::string_view operation = name.data();
    return operation == kEndOfProgram || operation == kEndOfCell;
  }
};

/// The state of a thread that other threads may read. Only the thread itself writes, but the watchdog writes the
/// verdict.
struct Thread {
  Thread();
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread();

  const std::uint64_t id;                    // as Python counts threads
  std::mutex mutex;                          // of the next three members
  Activity activity;                         // the operation it is in, or was in last
  int depth = 0;                             // number of nested operations it is in
  std::string verdict;                       // why the watchdog ended a wait
  std::atomic<std::int64_t> waits_since{0};  // by the steady clock; 0 while it does not wait
  std::atomic<int> awaited{-1};              // the rank of the operation's communicator that it waits for; -1: unknown
  std::atomic<std::int64_t> given_up{0};     // which wait, by its beginning, the watchdog ended
};

Thread& this_thread();

/// Calls the function with every living thread that was ever in an operation. No thread ends meanwhile.
void for_each_thread(const std::function<void(Thread&)>& look);

/// Records, while it lives, that this thread is in an operation.
class Operation {
 public:
  explicit Operation(const Call& call);
  explicit Operation(std::string_view name) : Operation(Call{.name = name}) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation();

 private:
  Activity outer_;
};

/// Counts its lifetime as time waited. Nested objects count once: a thread that waits for a started operation may carry
/// it out itself, and wait within it.
class Waiting {
 public:
  Waiting() {
    if (depth_++ == 0) this_thread().waits_since.store(start_.time_since_epoch().count(), std::memory_order_relaxed);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;
  ~Waiting() {
    if (--depth_ > 0) return;
    this_thread().waits_since.store(0, std::memory_order_relaxed);
    waited += std::chrono::steady_clock::now() - start_;
  }

 private:
  static inline thread_local int depth_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace distdl::comm
