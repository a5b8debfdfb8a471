#include "kernels/memory.hpp"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include "base/page_heap.hpp"
#include "kernels/region_copy.hpp"

namespace distdl::kernels {

namespace {

// Below this, malloc hardly ever returns memory to the system, and is as fast.
constexpr std::size_t kMinPooled = 64 << 10;

/// torch's allocator for the CPU, but for large tensors, which are in the heap.
class TensorMemory final : public c10::Allocator {
 public:
  TensorMemory() {
    pthread_atfork([] { memory().heap_.lock(); }, [] { memory().heap_.unlock(); }, [] { memory().heap_.unlock(); });
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    void* address = bytes < kMinPooled ? nullptr : heap_.allocate(bytes);
    if (address == nullptr) return elsewhere(bytes);
    c10::profiledCPUMemoryReporter().New(address, bytes);
    return {address, address, &free, at::kCPU};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free; }

  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }

  /// Never destroyed: tensors may outlive everything else.
  static TensorMemory& memory() {
    static auto* const the_memory = new TensorMemory;
    return *the_memory;
  }

  base::PageHeap& heap() { return heap_; }

 private:
  /// Memory of torch's allocator; the heap's unused memory is given back if there is too little.
  c10::DataPtr elsewhere(std::size_t bytes) {
    const auto allocated = [&] {
      auto data = torchs_->allocate(bytes);
      void* const address = data.get();
      data.release_context();
      return c10::DataPtr{address, address, &free, at::kCPU};
    };
    try {
      return allocated();
    } catch (const c10::Error&) {
      if (heap_.unused() == 0) throw;
      heap_.release();
    }
    return allocated();
  }

  static void free(void* address) {
    auto& here = memory();
    if (!here.heap_.owns(address)) return here.torchs_->raw_deallocate(address);
    c10::profiledCPUMemoryReporter().Delete(address);
    here.heap_.free(address);
  }

  c10::Allocator* const torchs_ = c10::GetDefaultCPUAllocator();
  base::PageHeap heap_;
};

}  // namespace

at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const auto dtype = options.dtype().toScalarType();
  if (!options.device().is_cpu() || options.pinned_memory()) return at::empty(sizes, options);
  return at::detail::empty_generic(sizes, &TensorMemory::memory(), c10::DispatchKeySet(c10::DispatchKey::CPU), dtype,
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

void allocate_all_tensors() { c10::SetCPUAllocator(&TensorMemory::memory()); }
base::PageHeap& pool() { return TensorMemory::memory().heap(); }

}  // namespace distdl::kernels
