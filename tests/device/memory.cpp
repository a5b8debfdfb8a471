#include "memory.hpp"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "guard.hpp"

namespace lagging {

namespace {

constexpr std::size_t kReserved = std::size_t{64} << 30, kSmallest = 512;
constexpr int kPoison = 0xFF;  // not a number, or -1

std::size_t rounded(std::size_t bytes) { return std::bit_ceil(std::max(bytes, kSmallest)); }

class DeviceMemory final : public c10::Allocator {
 public:
  DeviceMemory() {
    const int file = memfd_create("device", MFD_CLOEXEC);
    TORCH_CHECK(file >= 0 && ftruncate(file, kReserved) == 0, "no memory for the device");
    outside_ = map(file, PROT_NONE);
    inside_ = map(file, PROT_READ | PROT_WRITE);
    close(file);
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    const auto device = current_device();
    const c10::Device where(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device));
    if (bytes == 0) return {nullptr, where};
    const std::lock_guard lock(mutex_);
    release_pending();
    const auto stream = current_stream(device);
    auto& idle = idle_[{stream, rounded(bytes)}];
    Block* block = nullptr;
    if (!idle.empty()) {
      block = idle.back();
      idle.pop_back();
    } else {
      block = new Block{used_, rounded(bytes), stream, {}};
      used_ += block->size;
      TORCH_CHECK(used_ <= kReserved, "the device has no memory left");
      std::memset(inside_ + block->offset, kPoison, block->size);
    }
    return {outside_ + block->offset, block, &give_back, where};
  }

  void copy_data(void* to, const void* from, std::size_t count) const override {
    enqueue(current_stream(current_device()),
            [to = inside(to), from = inside(from), count] { std::memcpy(to, from, count); });
  }

  char* inside(const void* address) const {
    const auto* const at = static_cast<const char*>(address);
    TORCH_CHECK(outside_ <= at && at < outside_ + kReserved, "no address of the device");
    return inside_ + (at - outside_);
  }

  void open(bool open) {
    TORCH_CHECK(mprotect(outside_, kReserved, open ? PROT_READ | PROT_WRITE : PROT_NONE) == 0, "mprotect failed");
  }

  void record_stream(const c10::DataPtr& data, int stream) {
    const std::lock_guard lock(mutex_);
    auto* const block = data.cast_context<Block>(&give_back);
    if (block != nullptr && stream != block->stream) block->streams.insert(stream);
  }

 private:
  struct Block {
    std::size_t offset, size;
    int stream;
    std::set<int> streams;  // others that use it
  };

  static char* map(int file, int protection) {
    auto* const at = mmap(nullptr, kReserved, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
    TORCH_CHECK(at != MAP_FAILED, "no addresses for the device");
    return static_cast<char*>(at);
  }

  static void give_back(void* context);

  void keep(Block* block) {
    const std::lock_guard lock(mutex_);
    std::vector<Moment> moments;
    for (const auto stream : std::exchange(block->streams, {})) moments.push_back(now(stream));
    pending_.emplace_back(block, std::move(moments));
    release_pending();
  }

  void release_pending() {
    std::erase_if(pending_, [&](const auto& pending) {
      const auto& [block, moments] = pending;
      if (!std::all_of(moments.begin(), moments.end(), has_passed)) return false;
      enqueue(block->stream, [to = inside_ + block->offset, size = block->size] { std::memset(to, kPoison, size); });
      idle_[{block->stream, block->size}].push_back(block);
      return true;
    });
  }

  std::mutex mutex_;
  char *outside_, *inside_;
  std::size_t used_ = 0;
  std::map<std::pair<int, std::size_t>, std::vector<Block*>> idle_;
  std::vector<std::pair<Block*, std::vector<Moment>>> pending_;
};

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::kCPU};
    const std::lock_guard lock(mutex_);
    const auto size = rounded(bytes);
    auto idle = std::find_if(idle_.begin(), idle_.end(), [&](const Block* block) {
      return block->size == size && std::all_of(block->moments.begin(), block->moments.end(), has_passed);
    });
    Block* block = nullptr;
    if (idle != idle_.end()) {
      block = *idle;
      idle_.erase(idle);
      block->moments.clear();
    } else {
      block = new Block{static_cast<char*>(std::aligned_alloc(kSmallest, size)), size, {}};
      blocks_[block->address] = block;
    }
    std::memset(block->address, kPoison, size);
    return {block->address, block, &give_back, c10::kCPU};
  }

  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }

  bool has(const void* address) {
    const std::lock_guard lock(mutex_);
    return block_of(address) != nullptr;
  }

  void record(const void* address, Moment moment) {
    const std::lock_guard lock(mutex_);
    block_of(address)->moments.push_back(moment);
  }

 private:
  struct Block {
    char* address;
    std::size_t size;
    std::vector<Moment> moments;
  };

  static void give_back(void* context);

  Block* block_of(const void* address) const {
    const auto* const at = static_cast<const char*>(address);
    auto next = blocks_.upper_bound(at);
    if (next == blocks_.begin()) return nullptr;
    auto* const block = std::prev(next)->second;
    return at < block->address + block->size ? block : nullptr;
  }

  std::mutex mutex_;
  std::map<const char*, Block*> blocks_;
  std::vector<Block*> idle_;
};

DeviceMemory& of_device() {
  static auto* const memory = new DeviceMemory;
  return *memory;
}

PinnedMemory& of_host() {
  static auto* const memory = new PinnedMemory;
  return *memory;
}

void DeviceMemory::give_back(void* context) { of_device().keep(static_cast<Block*>(context)); }

void PinnedMemory::give_back(void* context) {
  auto& memory = of_host();
  const std::lock_guard lock(memory.mutex_);
  memory.idle_.push_back(static_cast<Block*>(context));
}

}  // namespace

c10::Allocator& device_memory() { return of_device(); }
void open_memory(bool open) { of_device().open(open); }
char* inside(const void* address) { return of_device().inside(address); }
void record_stream(const c10::DataPtr& data, int stream) { of_device().record_stream(data, stream); }

c10::Allocator& pinned_memory() { return of_host(); }
bool is_pinned(const void* address) { return of_host().has(address); }
void record_pinned(const void* address, Moment moment) { of_host().record(address, moment); }

}  // namespace lagging
