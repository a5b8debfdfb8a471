#include "base/page_heap.hpp"

#include <sys/mman.h>

#include <atomic>
#include <iterator>
#include <new>

namespace distdl::base {

namespace {

constexpr std::size_t kPage = 4 << 10;
constexpr std::size_t kHugePage = 2 << 20;
// Far from where systems with 47 and more bits of addresses, and sanitizers, put anything.
constexpr std::uintptr_t kStart = std::uintptr_t{0x30} << 40;

std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

PageHeap::PageHeap() {
  static std::atomic<std::uintptr_t> next{kStart};
  start_ = top_ = next.fetch_add(kAddresses);
}

PageHeap::~PageHeap() {
  if (top_ > start_) munmap(reinterpret_cast<void*>(start_), top_ - start_);
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

void PageHeap::free(void* address) noexcept {
  const std::lock_guard lock(mutex_);
  const auto used = used_.find(reinterpret_cast<std::uintptr_t>(address));
  const auto [place, size] = *used;
  used_.erase(used);
  used_bytes_ -= size;
  try {
    join(place, size);
  } catch (const std::bad_alloc&) {
  }
}

/// Adds a free span, with its free neighbors.
void PageHeap::join(std::uintptr_t place, std::size_t size) {
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

/// Adds a free span of at least this size at the top, with the free span before it. Pages of other free spans go back
/// to the system: they are of sizes that are not asked for any more, or there is not enough memory for both.
bool PageHeap::grow(std::size_t size) {
  auto last = free_.empty() ? free_.end() : std::prev(free_.end());
  if (last != free_.end() && last->first + last->second.size < top_) last = free_.end();
  const auto place = last == free_.end() ? top_ : last->first;
  if (size + kHugePage > kAddresses - (place - start_)) return false;
  for (auto span = free_.begin(); span != last;) give_back(span++);
  const auto more = rounded_up(size - (top_ - place), kHugePage);
  void* const wanted = reinterpret_cast<void*>(top_);
  void* const pages =
      mmap(wanted, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (pages == MAP_FAILED) return false;
  if (pages != wanted) {  // a system that takes the address for a wish
    munmap(pages, more);
    return false;
  }
  madvise(pages, more, MADV_HUGEPAGE);  // a wish: where it is not granted, pages are small
  Free span{top_ - place + more, false};
  if (last != free_.end()) {
    span.is_kept = last->second.is_kept;
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
  if (!free.is_kept && place + free.size < top_) return;
  void* const pages = reinterpret_cast<void*>(place);
  const bool is_last = place + free.size == top_;
  if (free.is_kept && !is_last) madvise(pages, free.size, MADV_DONTNEED);
  erase(span);
  if (is_last && munmap(pages, free.size) == 0) {
    top_ = place;
  } else {
    insert(place, {free.size, false});
  }
}

void PageHeap::give_back_all() {
  for (auto span = free_.begin(); span != free_.end();) give_back(span++);
}

}  // namespace distdl::base
