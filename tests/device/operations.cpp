// Torch's operations on tensors of the device.
//
// Copies, and operations that write to a tensor, are queued in the current stream: the device runs the CPU's kernels on
// its own view of the memory. All others wait for the stream, and run on the CPU on copies of their arguments.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "guard.hpp"
#include "memory.hpp"
#include "streams.hpp"

namespace lagging {

namespace {

using at::Tensor;
using torch::jit::Stack;

bool is_here(const Tensor& x) { return x.defined() && x.is_privateuseone(); }
int stream_of(const Tensor& x) { return current_stream(x.device().index()); }

/// A tensor's memory as a tensor that the device computes with, or the copy of a tensor of the CPU.
Tensor seen_inside(const Tensor& x) {
  if (!x.defined()) return x;
  const auto options = at::TensorOptions().dtype(x.dtype()).device(at::kCPU);
  if (!is_here(x)) return x.clone();
  if (x.numel() == 0) return at::empty_strided(x.sizes(), x.strides(), options);
  auto seen = at::from_blob(inside(x.unsafeGetTensorImpl()->data()), x.sizes(), x.strides(), options);
  seen._set_conj(x.is_conj());
  seen._set_neg(x.is_neg());
  return seen;
}

/// Operators within operators are not seen by what watches the outer ones.
struct Below {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard below_modes{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

// Memory -------------------------------------------------------------------------------------------------------------

Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
             std::optional<at::Device> device, std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(c10::layout_or_default(layout) == at::kStrided && !c10::pinned_memory_or_default(pinned),
              "the device has strided tensors alone, in memory of its own");
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(sizes, &device_memory(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(sizes, strides, &device_memory(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

void record_stream_of(Tensor& x, at::Stream stream) {
  record_stream(x.storage().data_ptr(), stream.device_index() * kStreams + static_cast<int>(stream.id()));
}

// Copies -------------------------------------------------------------------------------------------------------------

/// Whether the device copies to or from a tensor of the host itself, and no temporary tensor of the host is needed.
bool is_direct(const Tensor& host, const Tensor& other) {
  return host.is_non_overlapping_and_dense() && host.scalar_type() == other.scalar_type() &&
         host.sizes() == other.sizes() && host.is_conj() == other.is_conj() && host.is_neg() == other.is_neg();
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return to;
  const Below below;
  const auto& here = is_here(to) ? to : from;
  const auto stream = stream_of(here);
  const auto bus = !is_here(from) ? Bus::to_device : !is_here(to) ? Bus::to_host : Bus::none;
  const auto copy = [stream, bus](const Tensor& source, const Tensor& target) {
    enqueue(stream, [source, target] { target.copy_(source); }, bus, target.nbytes());
    return now(stream);
  };
  if (is_here(from) && is_here(to)) {
    if (from.device() != to.device()) enqueue_wait(stream, now(stream_of(from)));
    const auto copied = copy(seen_inside(from), seen_inside(to));
    if (from.device() != to.device()) enqueue_wait(stream_of(from), copied);
    return to;
  }
  const auto& host = is_here(to) ? from : to;
  const bool queued = host.is_pinned() && is_direct(host, here);
  const auto alias = [](const Tensor& x) {
    return at::from_blob(x.data_ptr(), x.sizes(), x.strides(), x.options().pinned_memory(false));
  };
  if (queued) {
    auto seen = alias(host);
    seen._set_conj(host.is_conj());
    seen._set_neg(host.is_neg());
    const auto copied = is_here(to) ? copy(seen, seen_inside(to)) : copy(seen_inside(from), seen);
    record_pinned(host.data_ptr(), copied);
    if (!non_blocking) wait(copied);
  } else if (is_here(to)) {
    const auto copied = copy(from.clone(), seen_inside(to));
    if (!non_blocking) wait(copied);
  } else {
    const auto arrived = at::empty(from.sizes(), from.options().device(at::kCPU));
    wait(copy(seen_inside(from), arrived));
    to.copy_(arrived);
  }
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) at::native::resize_(to, from.sizes());
  return copy_from(from, to, false);
}

at::Scalar number(const Tensor& x) { return at::_local_scalar_dense(x.cpu()); }

// Operations that write to a tensor ----------------------------------------------------------------------------------

/// Applies a function to all tensors among the arguments. False where one is of a kind that has to be left alone.
template <class Function>
bool change_tensors(Stack& stack, const Function& function) {
  for (auto& value : stack) {
    if (value.isTensor()) {
      value = function(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<Tensor> changed;
      for (const auto& x : value.toTensorVector()) changed.push_back(function(x));
      value = std::move(changed);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> changed;
      for (const std::optional<Tensor>& x : value.toOptionalTensorList()) {
        changed.push_back(x && x->defined() ? std::optional(function(*x)) : std::nullopt);
      }
      value = std::move(changed);
    } else if (value.isGenerator() || value.isStorage()) {
      return false;
    }
  }
  return true;
}

/// The positions of the arguments that are written to; none if the results are others.
std::vector<std::size_t> written(const c10::FunctionSchema& schema) {
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* const alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    if (schema.arguments()[i].type()->kind() != c10::TypeKind::TensorType) return {};
    positions.push_back(i);
  }
  for (const auto& result : schema.returns()) {
    if (result.alias_info() == nullptr || !result.alias_info()->isWrite()) return {};
  }
  if (!schema.returns().empty() && schema.returns().size() != positions.size()) return {};
  return positions;
}

/// Queues an operation whose results are tensors that are there, of the right sizes.
bool queue(const c10::OperatorHandle& op, Stack* stack) {
  const auto positions = written(op.schema());
  const auto count = op.schema().arguments().size();
  if (positions.empty() || op.hasTag(at::Tag::nondeterministic_seeded)) return false;
  const auto arguments = torch::jit::last(*stack, count).vec();
  for (const auto at : positions) {
    if (!arguments[at].isTensor() || !is_here(arguments[at].toTensor())) return false;
  }
  const auto stream = stream_of(arguments[positions.front()].toTensor());
  bool knows_all = true;
  const auto as_meta = [&](const Tensor& x) {
    if (!x.defined()) return x;
    knows_all = knows_all && (is_here(x) ? stream_of(x) == stream : x.is_cpu() && x.dim() == 0);
    if (!is_here(x)) return x;
    return at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kMeta));
  };
  auto meta = arguments;
  if (!change_tensors(meta, as_meta) || !knows_all) return false;
  const Below below;
  try {
    std::vector<Tensor> outputs;
    for (const auto at : positions) outputs.push_back(meta[at].toTensor());
    op.callBoxed(&meta);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const auto& x = arguments[positions[i]].toTensor();
      if (outputs[i].sizes() != x.sizes() || outputs[i].strides() != x.strides()) return false;
    }
  } catch (const std::exception&) {
    return false;  // the CPU tells what is wrong, if anything is
  }
  auto own = arguments;
  change_tensors(own, seen_inside);
  enqueue(stream, [op, own, positions]() mutable {
    std::vector<std::pair<Tensor, Tensor>> results;  // which kernels may resize meanwhile
    for (const auto at : positions) {
      const auto seen = own[at].toTensor();
      const bool is_read = !op.schema().arguments()[at].kwarg_only();
      results.emplace_back(seen, is_read ? seen.clone() : at::empty({0}, seen.options()));
      own[at] = results.back().second;
    }
    op.callBoxed(&own);
    for (const auto& [seen, result] : results) seen.copy_(result);
  });
  torch::jit::drop(*stack, count);
  if (!op.schema().returns().empty()) {
    for (const auto at : positions) stack->push_back(arguments[at]);
  }
  return true;
}

// All others ---------------------------------------------------------------------------------------------------------

std::mutex counting;
std::map<std::string, std::int64_t> counts;

void count(const std::string& name) {
  const std::lock_guard lock(counting);
  ++counts[name];
}

/// As other devices do, which compute with no tensor of the CPU but numbers and indices.
void check_devices(const c10::OperatorHandle& op, const Stack& arguments) {
  std::optional<at::Device> device;
  bool mixed = false;
  auto seen = arguments;
  change_tensors(seen, [&](const Tensor& x) {
    if (is_here(x)) mixed = mixed || device.value_or(x.device()) != x.device(), device = x.device();
    return x;
  });
  for (const auto& value : arguments) {
    if (!device || !value.isTensor() || !value.toTensor().defined()) continue;
    mixed = mixed || (value.toTensor().is_cpu() && value.toTensor().dim() > 0);
  }
  TORCH_CHECK(!mixed, op.schema().operator_name(), ": all tensors have to be on the same device");
}

void compute(const c10::OperatorHandle& op, Stack* stack) {
  check_devices(op, torch::jit::last(*stack, op.schema().arguments().size()).vec());
  if (queue(op, stack)) return;
  count(c10::toString(op.operator_name()));
  const FallingBack falling_back;
  std::optional<at::Generator> own, of_cpu;
  for (auto& value : torch::jit::last(*stack, op.schema().arguments().size()).vec()) {
    if (value.isGenerator() && value.toGenerator().device().is_privateuseone()) own = value.toGenerator();
  }
  if (own) {
    of_cpu = at::detail::createCPUGenerator();
    of_cpu->set_state(own->get_state());
    for (auto& value : *stack) {
      if (value.isGenerator()) value = *of_cpu;
    }
  }
  // It writes to the running statistics, of which its schema says nothing.
  const bool is_batch_norm = op.schema().name() == "aten::native_batch_norm";
  const auto before = torch::jit::last(*stack, op.schema().arguments().size()).vec();
  if (is_batch_norm) {
    for (const auto at : {3, 4}) {
      auto& value = torch::jit::peek(*stack, at, before.size());
      if (value.isTensor() && value.toTensor().defined()) value = value.toTensor().cpu();
    }
  }
  const auto during = torch::jit::last(*stack, before.size()).vec();
  at::native::cpu_fallback(op, stack);
  for (const auto at : {3, 4}) {
    if (is_batch_norm && during[at].isTensor() && during[at].toTensor().defined())
      before[at].toTensor().copy_(during[at].toTensor());
  }
  if (own) own->set_state(of_cpu->get_state());
}

Tensor convolution(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                   std::int64_t groups) {
  count("aten::convolution");
  const FallingBack falling_back;
  const Below below;
  const auto own_bias = bias && bias->defined() ? std::optional(bias->cpu()) : std::nullopt;
  return at::convolution(x.cpu(), weight.cpu(), own_bias, stride, padding, dilation, transposed, output_padding, groups)
      .to(x.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& gradient, const Tensor& x, const Tensor& weight,
                                                        at::IntArrayRef stride, at::IntArrayRef padding,
                                                        at::IntArrayRef dilation, bool transposed,
                                                        at::IntArrayRef output_padding, std::int64_t groups,
                                                        std::array<bool, 3> mask) {
  count("aten::convolution_backward");
  const FallingBack falling_back;
  const Below below;
  const std::vector<std::int64_t> bias_sizes{gradient.size(1)};
  const auto [a, b, c] = at::convolution_backward(gradient.cpu(), x.cpu(), weight.cpu(), at::IntArrayRef(bias_sizes),
                                                  stride, padding, dilation, transposed, output_padding, groups, mask);
  const auto moved = [&](const Tensor& y) { return y.defined() ? y.to(x.device()) : y; };
  return {moved(a), moved(b), moved(c)};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("record_stream", record_stream_of);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", number);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  // Views, and others that do not touch memory.
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("resize_", at::native::resize_);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
}

// Copies see to what is pending themselves.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

std::vector<std::string> fallbacks() {
  const std::lock_guard lock(counting);
  std::vector<std::string> names;
  for (const auto& [name, n] : counts) names.push_back(name + " " + std::to_string(n));
  counts.clear();
  return names;
}

TORCH_LIBRARY(lagging, m) {
  m.def("synchronize", [](std::int64_t device) { wait_for_device(static_cast<int>(device)); });
  m.def("synchronizations", [] { return synchronizations(); });
  m.def("fallbacks", [] { return fallbacks(); });
  m.def("set_late", [](bool late) { set_schedule(late ? Schedule::late : Schedule::others_first); });
  m.def("open_memory", [](bool open) { open_memory(open); });
  m.def("set_delay", [](std::int64_t microseconds) { set_delay(microseconds); });
}

}  // namespace

}  // namespace lagging
