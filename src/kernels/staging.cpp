#include "kernels/staging.hpp"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <thread>
#include <utility>

#include "comm/progress.hpp"
#include "kernels/memory.hpp"
#include "kernels/region_copy.hpp"

namespace distdl::kernels {

namespace {

std::atomic<Staging> when_to_stage{Staging::where_needed};
std::atomic<bool> is_direct{false};

at::TensorOptions host_options(const at::TensorOptions& options) {
  return options.device(at::kCPU).pinned_memory(!options.device().is_cpu());
}

}  // namespace

void set_staging(Staging when) { when_to_stage = when; }
Staging staging() { return when_to_stage; }

bool is_staged(const at::Device& device) { return !device.is_cpu() || when_to_stage == Staging::always; }

void set_direct(bool on) { is_direct = on; }
bool direct() { return is_direct; }

void wait_for(const c10::Event& event) {
  for (int polls = 0; !event.query(); ++polls) comm::patient() ? comm::pause(polls) : std::this_thread::yield();
}

void wait_for_stream(const at::Device& device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  c10::Event reached(device.type());
  reached.record(guard.getStream(device));
  wait_for(reached);
}

at::Tensor for_sending(const at::Tensor& x) { return std::move(for_sending(std::vector{x}).front()); }

std::vector<at::Tensor> for_sending(std::vector<at::Tensor> all) {
  std::optional<at::Device> device;
  for (auto& x : all) {
    if (!is_staged(x.device())) {
      x = contiguous(x);
      continue;
    }
    if (!x.is_cpu() && x.numel() > 0) device = x.device();
    x = empty(x.sizes(), host_options(x.options())).copy_(resolved(x), /*non_blocking=*/true);
  }
  if (device) {
    const c10::impl::VirtualGuardImpl guard(device->type());
    guard.synchronizeStream(guard.getStream(*device));
  }
  return all;
}

CopiesToHost::Copy CopiesToHost::start(const at::Tensor& x) {
  const c10::impl::VirtualGuardImpl guard(x.device().type());
  if (!stream_) stream_ = guard.getStreamFromGlobalPool(x.device());
  c10::Event ready(x.device().type()), done(x.device().type());
  ready.record(guard.getStream(x.device()));
  ready.block(*stream_);
  const c10::StreamGuard beside(*stream_);
  const auto host = on_the_way_to(x);
  host.copy_(x, /*non_blocking=*/true);
  done.record(*stream_);
  return {x, host, std::move(done)};
}

at::Tensor packed(const at::Tensor& x) { return x.is_cpu() ? for_sending(x) : contiguous(x); }

at::Tensor on_the_way_to(const at::Tensor& x) { return empty(x.sizes(), host_options(x.options())); }

at::Tensor for_receiving(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return empty(sizes, is_staged(options.device()) ? host_options(options) : options);
}

at::Tensor delivered_sum(const at::Tensor& sum, const at::Device& device, c10::ScalarType dtype) {
  if (!sum.is_cpu() || !is_staged(device)) return converted(sum, dtype);
  return converted(copy_region(sum, empty(sum.sizes(), sum.options().device(device).pinned_memory(false))), dtype);
}

StreamOrder::StreamOrder(const at::Tensor& x) : device_(x.device()) {
  if (device_.is_cpu()) return;
  ready_.emplace(device_.type());
  ready_->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

at::Tensor StreamOrder::run(const at::Tensor& x, const std::function<at::Tensor()>& apply) {
  if (!ready_) return apply();
  const auto side = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
  ready_->block(side);
  if (x.has_storage()) x.record_stream(side);
  const c10::StreamGuard in_side(side);
  auto result = apply();
  done_.emplace(device_.type());
  done_->record(side);
  return result;
}

void StreamOrder::join(const at::Tensor& result) const {
  if (!done_) return;
  const auto current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  done_->block(current);
  result.record_stream(current);
}

}  // namespace distdl::kernels
