// Memory for large tensors, in whole pages that are kept for the next ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace distdl::base {

/// Spans of pages in one range of addresses. A free span joins its free neighbors, and a request gets the smallest span
/// that is large enough, the lowest of several. So memory that a step of training frees serves the next step, whatever
/// the sizes; fresh pages would cost more than most computations on them.
///
/// Any thread may call. Forked processes go on with a copy.
class PageHeap {
 public:
  static constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kAddresses = std::size_t{4} << 40;  // of a heap

  PageHeap();
  ~PageHeap();
  PageHeap(const PageHeap&) = delete;
  PageHeap& operator=(const PageHeap&) = delete;

  /// Memory for so many bytes, at least one; nullptr if there is none.
  void* allocate(std::size_t bytes);
  /// Loses the memory if there is none for its record.
  void free(void* address) noexcept;
  bool owns(const void* address) const {
    const auto place = reinterpret_cast<std::uintptr_t>(address);
    return place - start_ < kAddresses;
  }

  /// How many bytes of unused memory stay with the process. What is freed beyond that goes back to the system, with
  /// the unused memory beside it. With 0 the heap hands out no memory.
  void set_limit(std::size_t bytes);
  std::size_t limit() const;
  /// How many bytes are handed out.
  std::size_t used() const;
  /// How many bytes of unused memory the heap keeps.
  std::size_t unused() const;
  /// Gives all unused memory back to the system.
  void release();

  /// Around a fork, so that no other thread holds the heap in the new process.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Free {
    std::size_t size;
    bool is_kept;  // whether some of its pages may be in memory
  };
  using Spans = std::map<std::uintptr_t, Free>;  // by address

  bool grow(std::size_t size);
  void join(std::uintptr_t place, std::size_t size);
  void insert(std::uintptr_t place, Free span);
  void erase(Spans::iterator span);
  void give_back(Spans::iterator span);
  void give_back_all();

  mutable std::mutex mutex_;
  std::uintptr_t start_, top_;  // of the memory
  Spans free_;
  std::set<std::pair<std::size_t, std::uintptr_t>> by_size_;
  std::unordered_map<std::uintptr_t, std::size_t> used_;
  std::size_t used_bytes_ = 0, unused_bytes_ = 0;
  std::size_t limit_ = kNoLimit;
};

}  // namespace distdl::base
