#include "kernels/channel_values.hpp"

#include <ATen/Dispatch.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "kernels/below_autograd.hpp"

namespace distdl::kernels {

Values numbers_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  TORCH_CHECK(tensor.is_cpu(), "expected weight and bias of a norm on the CPU, as its input, but got ",
              tensor.device());
  const auto values = in_memory(tensor).contiguous();
  Values result;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, values.scalar_type(), "normalize_block", [&] {
    const auto* const data = values.const_data_ptr<scalar_t>();
    result.assign(data, data + values.numel());
  });
  return result;
}

double by_turns(const Values& values, std::size_t channel, double otherwise) {
  return values.empty() ? otherwise : values[channel % values.size()];
}

at::Tensor as_tensor(const Values& values, const at::Tensor& like) {
  const auto numel = static_cast<std::int64_t>(values.size());
  auto result = at::empty({numel}, like.options().dtype(at::kDouble));
  std::copy(values.begin(), values.end(), result.data_ptr<double>());
  return result.to(like.scalar_type()).view(like.sizes());
}

void follow(const at::Tensor& running, const at::Tensor& value, double divisor, double momentum) {
  const BelowAutograd guard;
  if (!running.device().is_cpu() || !running.is_contiguous() || c10::isReducedFloatingType(running.scalar_type())) {
    running.copy_(running.mul(1 - momentum).add(value.view(-1).div(divisor), momentum));
  } else {
    const auto values = value.contiguous();
    const auto* const data = values.const_data_ptr<double>();
    AT_DISPATCH_FLOATING_TYPES(running.scalar_type(), "follow", [&] {
      auto* const to = running.data_ptr<scalar_t>();
      const auto rest = static_cast<scalar_t>(1 - momentum);
      for (std::int64_t i = 0; i < running.numel(); ++i) {
        to[i] = static_cast<scalar_t>(rest * to[i] + momentum * (data[i] / divisor));
      }
    });
  }
  if (!running.is_inference()) torch::autograd::impl::bump_version(running);
}

}  // namespace distdl::kernels
