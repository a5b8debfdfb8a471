#include "guard.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "memory.hpp"
#include "streams.hpp"

namespace lagging {

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::kPrivateUse1;

constexpr int kPool = 4;  // streams of the pool, which threads take by turns, after the default stream

thread_local DeviceIndex device_of_thread = 0;
thread_local std::array<int, kDevices> streams_of_thread{};
std::atomic<int> taken{0}, made{0};

DeviceIndex index_of(Device device) { return device.has_index() ? device.index() : device_of_thread; }
int number_of(const c10::Stream& stream) { return stream.device_index() * kStreams + static_cast<int>(stream.id()); }
Device device_at(DeviceIndex index) {
  TORCH_CHECK(0 <= index && index < kDevices, "there is no device ", static_cast<int>(index));
  return {kPrivateUse1, index};
}
c10::Stream stream_at(Device device, int id) {
  return c10::Stream(c10::Stream::UNSAFE, device_at(index_of(device)), id);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kPrivateUse1; }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  Device getDevice() const override { return device_at(device_of_thread); }
  void setDevice(Device device) const override { device_of_thread = device_at(index_of(device)).index(); }
  void uncheckedSetDevice(Device device) const noexcept override { device_of_thread = index_of(device); }
  Device exchangeDevice(Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Stream getStream(Device device) const override {
    return stream_at(device, streams_of_thread.at(static_cast<std::size_t>(index_of(device))));
  }
  c10::Stream getDefaultStream(Device device) const override { return stream_at(device, 0); }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override {
    return stream_at(device, 1 + taken++ % kPool);
  }
  c10::Stream getNewStream(Device device, int) const override {
    return stream_at(device, 1 + kPool + made++ % (kStreams - kPool - 1));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(stream.device());
    streams_of_thread.at(static_cast<std::size_t>(stream.device_index())) = static_cast<int>(stream.id());
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override { return query(now(number_of(stream))); }
  void synchronizeStream(const c10::Stream& stream) const override { wait(now(number_of(stream))); }
  void synchronizeDevice(const DeviceIndex device) const override { wait_for_device(device); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_stream(data, number_of(stream));
  }

  void record(void** event, const c10::Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Moment;
    *static_cast<Moment*>(*event) = now(number_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) enqueue_wait(number_of(stream), *static_cast<Moment*>(event));
  }
  bool queryEvent(void* event) const override { return event == nullptr || query(*static_cast<Moment*>(event)); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) wait(*static_cast<Moment*>(event));
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<Moment*>(event); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

/// Numbers of the CPU's generator: operations that draw fall back to it.
struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(DeviceIndex index) {
    device_ = device_at(std::max<DeviceIndex>(0, index));
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(DeviceIndex device) const override { device_of_thread = device_at(device).index(); }
  DeviceIndex getCurrentDevice() const override { return device_of_thread; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return std::exchange(device_of_thread, device_at(device).index());
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device < 0 ? device_of_thread : exchangeDevice(device);
  }
  Device getDeviceFromPtr(void*) const override { return device_at(device_of_thread); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(DeviceIndex device) const override { return at::make_generator<Generator>(device); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, std::size_t bytes) const override {
    auto data = device_memory().allocate(bytes);
    const auto kept = std::min(bytes, storage.nbytes());
    if (kept > 0) device_memory().copy_data(data.get(), storage.data(), kept);
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(bytes);
  }
};

const bool registered = [] {
  c10::SetAllocator(kPrivateUse1, &device_memory());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

int current_device() { return device_of_thread; }
int current_stream(int device) { return device * kStreams + streams_of_thread.at(static_cast<std::size_t>(device)); }

}  // namespace lagging
