#include "base/page_heap.hpp"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

namespace distdl::base {

namespace {

constexpr std::size_t kPage = 4 << 10;
constexpr std::size_t kHugePage = 2 << 20;
constexpr std::size_t kMinAddresses = std::size_t{1} << 30;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

/// Addresses for several times the machine's memory, since free spans lie between those in use. They cost nothing.
std::size_t addresses_wanted() {
  const auto memory =
      static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  rlimit limit{};
  const bool is_limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return rounded_up(is_limited ? std::min<std::size_t>(4 * memory, limit.rlim_cur / 4) : 4 * memory, kHugePage);
}

}  // namespace

PageHeap::PageHeap() {
  for (auto size = addresses_wanted(); size >= kMinAddresses && start_ == 0; size /= 2) {
    void* const range = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) continue;
    start_ = rounded_up(reinterpret_cast<std::uintptr_t>(range), kHugePage);
    stop_ = reinterpret_cast<std::uintptr_t>(range) + size;
    top_ = start_;
    madvise(range, size, MADV_HUGEPAGE);  // a wish: where it is not granted, pages are small
  }
}

void* PageHeap::allocate(std::size_t bytes) {
  const auto size = rounded_up(bytes, kPage);
  const std::lock_guard lock(mutex_);
  if (limit_ == 0) return nullptr;
  auto best = by_size_.lower_bound({size, 0});
  if (best == by_size_.end()) {
    if (!grow(size)) return nullptr;
    best = by_size_.lower_bound({size, 0});
  }
  const auto place = best->second;
  const auto span = free_.find(place);
  const auto [whole, is_kept] = span->second;
  erase(span);
  if (whole > size) insert(place + size, {whole - size, is_kept});
  used_.emplace(place, size);
  used_bytes_ += size;
  return reinterpret_cast<void*>(place);
}

void PageHeap::free(void* address) {
  const std::lock_guard lock(mutex_);
  const auto used = used_.find(reinterpret_cast<std::uintptr_t>(address));
  auto place = used->first;
  auto size = used->second;
  used_.erase(used);
  used_bytes_ -= size;
  auto after = free_.lower_bound(place);
  if (after != free_.end() && after->first == place + size) {
    size += after->second.size;
    erase(after++);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second.size == place) {
      place = before->first;
      size += before->second.size;
      erase(before);
    }
  }
  insert(place, {size, true});
  if (unused_bytes_ > limit_) give_back(free_.find(place));
}

void PageHeap::set_limit(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  if (unused_bytes_ > limit_) give_back_all();
}

std::size_t PageHeap::limit() const {
  const std::lock_guard lock(mutex_);
  return limit_;
}

std::size_t PageHeap::used() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

std::size_t PageHeap::unused() const {
  const std::lock_guard lock(mutex_);
  return unused_bytes_;
}

void PageHeap::release() {
  const std::lock_guard lock(mutex_);
  give_back_all();
}

/// Adds a free span of at least this size at the top, with the free span before it.
bool PageHeap::grow(std::size_t size) {
  auto place = top_;
  if (!free_.empty()) {
    const auto last = std::prev(free_.end());
    if (last->first + last->second.size == top_) place = last->first;
  }
  const auto more = rounded_up(size - (top_ - place), kHugePage);
  if (size > stop_ - place || more > stop_ - top_) return false;
  if (mprotect(reinterpret_cast<void*>(top_), more, PROT_READ | PROT_WRITE) != 0) return false;
  Free span{more, false};
  if (place < top_) {
    const auto last = free_.find(place);
    span = {last->second.size + more, last->second.is_kept};
    erase(last);
  }
  top_ += more;
  insert(place, span);
  return true;
}

void PageHeap::insert(std::uintptr_t place, Free span) {
  free_.emplace(place, span);
  by_size_.emplace(span.size, place);
  if (span.is_kept) unused_bytes_ += span.size;
}

void PageHeap::erase(Spans::iterator span) {
  by_size_.erase({span->second.size, span->first});
  if (span->second.is_kept) unused_bytes_ -= span->second.size;
  free_.erase(span);
}

void PageHeap::give_back(Spans::iterator span) {
  const auto [place, free] = *span;
  if (free.is_kept) madvise(reinterpret_cast<void*>(place), free.size, MADV_DONTNEED);
  erase(span);
  // At the top the addresses go back, too, so that limits of a process's data do not count them.
  const bool is_last = place + free.size == top_;
  if (is_last && mprotect(reinterpret_cast<void*>(place), free.size, PROT_NONE) == 0) {
    top_ = place;
  } else {
    insert(place, {free.size, false});
  }
}

void PageHeap::give_back_all() {
  for (auto span = free_.begin(); span != free_.end();) give_back(span++);
}

}  // namespace distdl::base
