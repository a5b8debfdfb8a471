#include "operators/staging.hpp"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <mpi.h>

#include <atomic>
#include <string>

#include "comm/error.hpp"
#include "operators/memory.hpp"
#include "operators/region_copy.hpp"

namespace distdl::operators {

namespace {

std::atomic<Staging> when_to_stage{Staging::where_needed};

/// What MPI says about the kinds of memory that it can use: "system,mpi,cuda:device", for example (MPI 4.1, 11.4.3).
const std::string& memory_kinds() {
  static const std::string kinds = [] {
    MPI_Info info = MPI_INFO_NULL;
    comm::check(MPI_Comm_get_info(MPI_COMM_WORLD, &info), "MPI_Comm_get_info");
    std::string value(MPI_MAX_INFO_VAL, '\0');
    int length = static_cast<int>(value.size()), found = 0;
    const int code = MPI_Info_get_string(info, "mpi_memory_alloc_kinds", &length, value.data(), &found);
    MPI_Info_free(&info);
    comm::check(code, "MPI_Info_get_string");
    return found != 0 ? std::string(value.c_str()) : std::string();
  }();
  return kinds;
}

at::TensorOptions host_options(const at::TensorOptions& options) {
  return options.device(at::kCPU).pinned_memory(!options.device().is_cpu());
}

}  // namespace

void set_staging(Staging when) { when_to_stage = when; }
Staging staging() { return when_to_stage; }

bool is_staged(const at::Device& device) {
  const Staging when = when_to_stage;
  if (when != Staging::where_needed || device.is_cpu()) return when == Staging::always;
  // torch calls AMD's devices cuda as well.
  return memory_kinds().find(c10::DeviceTypeName(device.type(), true)) == std::string::npos &&
         !(device.is_cuda() && memory_kinds().find("rocm") != std::string::npos);
}

at::Tensor for_sending(const at::Tensor& x) {
  if (!is_staged(x.device())) return contiguous(x);
  return copy_region(resolved(x), empty(x.sizes(), host_options(x.options())));
}

at::Tensor for_receiving(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return empty(sizes, is_staged(options.device()) ? host_options(options) : options);
}

at::Tensor delivered(const at::Tensor& arrived, const at::Device& device) {
  if (!is_staged(device)) return arrived;
  return copy_region(arrived, empty(arrived.sizes(), arrived.options().device(device).pinned_memory(false)));
}

StreamOrder::StreamOrder(const at::Tensor& x) : device_(x.device()) {
  if (device_.is_cpu()) return;
  ready_.emplace(device_.type());
  ready_->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

at::Tensor StreamOrder::run(const std::function<at::Tensor()>& apply) {
  if (!ready_) return apply();
  const auto side = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
  ready_->block(side);
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

}  // namespace distdl::operators
