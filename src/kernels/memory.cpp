#include "kernels/memory.hpp"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <vector>

#include "kernels/region_copy.hpp"

namespace distdl::kernels {

namespace {

// Below this, malloc hardly ever returns memory to the system, and is as fast.
constexpr std::size_t kMinPooled = 64 << 10;
constexpr std::size_t kHugePage = 2 << 20;
constexpr std::size_t kDefaultLimit = 512 << 20;

struct Block {
  void* address;
  std::size_t capacity;
};

/// Four sizes to each power of two: a block serves all tensors of about its size, and wastes at most a fifth.
std::size_t capacity_for(std::size_t bytes) {
  const std::size_t step = std::bit_floor(bytes) / 4;
  return (bytes + step - 1) / step * step;
}

/// New memory, aligned to huge pages if it is large enough for them: they are cheaper to map.
void* map(std::size_t capacity) {
  const std::size_t alignment = capacity >= kHugePage ? kHugePage : 1;
  const std::size_t reserved = capacity + alignment - 1;
  void* mapped = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (alignment == 1) return mapped;
  const auto start = reinterpret_cast<std::uintptr_t>(mapped);
  const auto aligned = (start + alignment - 1) / alignment * alignment;
  if (aligned > start) munmap(mapped, aligned - start);
  const std::size_t behind = start + reserved - (aligned + capacity);
  if (behind > 0) munmap(reinterpret_cast<void*>(aligned + capacity), behind);
  auto* const address = reinterpret_cast<void*>(aligned);
  madvise(address, capacity, MADV_HUGEPAGE);  // a wish: where it is not granted, pages are small
  return address;
}

class Pool final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const auto capacity = capacity_for(std::max(bytes, kMinPooled));
    auto* const block = new Block{take(capacity), capacity};
    return {block->address, block, &give_back, at::kCPU};
  }

  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }

  void set_limit(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
    shrink_to(limit_);
  }

  std::size_t limit() {
    const std::lock_guard lock(mutex_);
    return limit_;
  }

  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return size_;
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    shrink_to(0);
  }

 private:
  static void give_back(void* context);

  void* take(std::size_t capacity) {
    {
      const std::lock_guard lock(mutex_);
      const auto idle = idle_of_.find(capacity);
      if (idle != idle_of_.end()) {
        const auto block = idle->second.back();  // used last, so that most of it is in the caches
        idle->second.pop_back();
        if (idle->second.empty()) idle_of_.erase(idle);
        auto* const address = block->address;
        size_ -= capacity;
        idle_.erase(block);
        return address;
      }
    }
    void* address = map(capacity);
    if (address == nullptr) {
      clear();
      address = map(capacity);
    }
    TORCH_CHECK(address != nullptr, "distdl: no memory for a tensor of ", capacity, " bytes");
    return address;
  }

  void keep(const Block& block) {
    const std::lock_guard lock(mutex_);
    if (block.capacity > limit_) {  // not at the cost of everything else
      munmap(block.address, block.capacity);
      return;
    }
    idle_.push_back(block);
    idle_of_[block.capacity].push_back(std::prev(idle_.end()));
    size_ += block.capacity;
    shrink_to(limit_);
  }

  /// Gives back the blocks that were not used for the longest time.
  void shrink_to(std::size_t bytes) {
    while (size_ > bytes) {
      const auto oldest = idle_.begin();
      auto& same = idle_of_.at(oldest->capacity);
      same.erase(same.begin());  // these are in the order of idle_
      if (same.empty()) idle_of_.erase(oldest->capacity);
      size_ -= oldest->capacity;
      munmap(oldest->address, oldest->capacity);
      idle_.erase(oldest);
    }
  }

  std::mutex mutex_;
  std::list<Block> idle_;                                                   // the block used last at the end
  std::map<std::size_t, std::vector<std::list<Block>::iterator>> idle_of_;  // by capacity, in the same order
  std::size_t size_ = 0;
  std::size_t limit_ = kDefaultLimit;
};

/// Never destroyed: tensors may outlive everything else.
Pool& pool() {
  static auto* const the_pool = new Pool;
  return *the_pool;
}

void Pool::give_back(void* context) {
  auto* const block = static_cast<Block*>(context);
  pool().keep(*block);
  delete block;
}

}  // namespace

at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const auto dtype = options.dtype().toScalarType();
  const auto bytes = static_cast<std::size_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  if (bytes < kMinPooled || !options.device().is_cpu() || options.pinned_memory()) return at::empty(sizes, options);
  return at::detail::empty_generic(sizes, &pool(), c10::DispatchKeySet(c10::DispatchKey::CPU), dtype,
                                   options.memory_format_opt());
}

at::Tensor resolved(const at::Tensor& x) { return x.is_conj() || x.is_neg() ? x.resolve_conj().resolve_neg() : x; }

at::Tensor contiguous(const at::Tensor& x) {
  const auto values = resolved(x);
  return values.is_contiguous() ? values : copy_of(values);
}

at::Tensor converted(const at::Tensor& x, c10::ScalarType dtype) {
  return x.scalar_type() == dtype ? x : empty(x.sizes(), x.options().dtype(dtype)).copy_(resolved(x));
}

at::Tensor copy_of(const at::Tensor& x) { return copy_region(resolved(x), empty(x.sizes(), x.options())); }

void set_pool_limit(std::size_t bytes) { pool().set_limit(bytes); }
std::size_t pool_limit() { return pool().limit(); }
std::size_t pool_size() { return pool().size(); }
void empty_pool() { pool().clear(); }

}  // namespace distdl::kernels
