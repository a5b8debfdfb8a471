// The heap of pages: tensors share no memory, what is freed serves again, and what is given back is gone.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "../check.hpp"
#include "base/page_heap.hpp"

using distdl::base::PageHeap;

namespace {

constexpr std::size_t kKiB = 1 << 10, kMiB = 1 << 20;

/// The bytes of these pages that are in memory.
std::size_t resident(const void* start, std::size_t bytes) {
  std::vector<unsigned char> pages(bytes / (4 * kKiB));
  CHECK_EQ(mincore(const_cast<void*>(start), bytes, pages.data()), 0);
  std::size_t count = 0;
  for (const auto page : pages) count += page & 1;
  return count * 4 * kKiB;
}

/// Random requests and releases; each block is filled with its number, and checked before it is freed.
void work(PageHeap& heap, unsigned seed) {
  std::mt19937 random(seed);
  std::map<unsigned, std::pair<unsigned char*, std::size_t>> blocks;
  const auto drop = [&](unsigned number) {
    const auto [block, size] = blocks.at(number);
    for (std::size_t i = 0; i < size; i += 512) CHECK_EQ(int{block[i]}, static_cast<int>(number % 251));
    CHECK_EQ(int{block[size - 1]}, static_cast<int>(number % 251));
    heap.free(block);
    blocks.erase(number);
  };
  for (unsigned number = 0; number < 600; ++number) {
    const std::size_t size = 1 + random() % (number % 7 == 0 ? 3 * kMiB : 200 * kKiB);
    auto* const block = static_cast<unsigned char*>(heap.allocate(size));
    CHECK(heap.owns(block) && heap.owns(block + size - 1));
    std::memset(block, static_cast<int>(number % 251), size);
    blocks[number] = {block, size};
    if (blocks.size() > 20) drop(std::next(blocks.begin(), static_cast<int>(random() % blocks.size()))->first);
  }
  while (!blocks.empty()) drop(blocks.begin()->first);
}

}  // namespace

TEST(blocks_in_use_share_no_memory) {
  PageHeap heap;
  work(heap, 1);
  CHECK_EQ(heap.used(), std::size_t{0});
  std::vector<std::thread> threads;
  for (unsigned seed = 2; seed < 6; ++seed) threads.emplace_back([&heap, seed] { work(heap, seed); });
  for (auto& thread : threads) thread.join();
  CHECK_EQ(heap.used(), std::size_t{0});
}

TEST(freed_neighbors_serve_a_larger_block) {
  PageHeap heap;
  for (const auto& order : std::vector<std::vector<int>>{{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}}) {
    std::vector<void*> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(heap.allocate(2 * kMiB));
    CHECK_EQ(heap.used(), 6 * kMiB);
    for (const auto i : order) heap.free(blocks[static_cast<std::size_t>(i)]);
    CHECK_EQ(heap.unused(), 6 * kMiB);
    void* const whole = heap.allocate(6 * kMiB);
    CHECK_EQ(whole, blocks[0]);
    heap.free(whole);
  }
}

TEST(the_smallest_span_that_is_large_enough_is_taken) {
  PageHeap heap;
  std::vector<void*> blocks;
  for (const auto size : {8 * kMiB, kMiB, 4 * kMiB, kMiB, 2 * kMiB, kMiB}) blocks.push_back(heap.allocate(size));
  for (const auto i : {0, 2, 4}) heap.free(blocks[static_cast<std::size_t>(i)]);
  CHECK_EQ(heap.allocate(3 * kMiB), blocks[2]);
  CHECK_EQ(heap.allocate(2 * kMiB), blocks[4]);
  CHECK_EQ(heap.allocate(5 * kMiB), blocks[0]);
}

TEST(memory_beyond_the_limit_is_given_back) {
  PageHeap heap;
  auto* const first = static_cast<unsigned char*>(heap.allocate(4 * kMiB));
  void* const fence = heap.allocate(64 * kKiB);
  std::memset(first, 1, 4 * kMiB);
  heap.set_limit(3 * kMiB);
  heap.free(first);
  CHECK_EQ(heap.unused(), std::size_t{0});
  CHECK_EQ(resident(first, 4 * kMiB), std::size_t{0});
  auto* const again = static_cast<unsigned char*>(heap.allocate(2 * kMiB));
  CHECK_EQ(again, first);
  CHECK_EQ(int{again[kMiB]}, 0);
  std::memset(again, 1, 2 * kMiB);
  heap.set_limit(PageHeap::kNoLimit);
  heap.free(again);
  CHECK_EQ(resident(first, 2 * kMiB), 2 * kMiB);
  heap.release();
  CHECK_EQ(resident(first, 4 * kMiB), std::size_t{0});
  heap.free(fence);
  heap.set_limit(0);
  CHECK(heap.allocate(kMiB) == nullptr);
}

TEST(what_grows_from_step_to_step_takes_the_place_of_what_it_was) {
  PageHeap heap;
  std::vector<void*> kept;  // above each of them there is no room for the next
  void* last = nullptr;
  for (std::size_t step = 1; step <= 100; ++step) {
    void* const block = heap.allocate(step * 200 * kKiB);
    std::memset(block, 1, step * 200 * kKiB);
    kept.push_back(heap.allocate(64 * kKiB));
    if (last != nullptr) heap.free(last);
    last = block;
    CHECK(heap.unused() <= 3 * step * 200 * kKiB + 2 * kMiB);
  }
}

TEST(without_addresses_there_is_no_memory) {
  PageHeap heap;
  CHECK(heap.allocate(std::size_t{1} << 45) == nullptr);
  CHECK_EQ(heap.used(), std::size_t{0});
  CHECK(!heap.owns(nullptr));
}

TEST(a_forked_process_goes_on_with_a_copy) {
  PageHeap heap;
  auto* const block = static_cast<unsigned char*>(heap.allocate(kMiB));
  block[0] = 7;
  const auto child = fork();
  if (child == 0) {
    block[0] = 8;
    heap.free(block);
    _exit(heap.allocate(kMiB) == block && heap.used() == kMiB ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
  CHECK_EQ(int{block[0]}, 7);
}
