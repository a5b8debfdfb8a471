#include "kernels/norm_by_torch.hpp"

#include <algorithm>
#include <limits>

namespace distdl::kernels {

namespace {

at::Tensor by_channel(const at::Tensor& values) { return values.view({1, -1, 1}); }

}  // namespace

at::Tensor moments_by_torch(const at::Tensor& input, const Channels& channels) {
  const auto x = channels.view(input).to(compute_dtype(input));
  const auto n = static_cast<double>(std::max<std::int64_t>(1, x.size(0) * x.size(2)));
  const auto pivot = x.detach().sum(at::IntArrayRef{0, 2}) / n;
  const auto deviations = x - by_channel(pivot);
  const auto rest = deviations.sum(at::IntArrayRef{0, 2}).to(at::kDouble) / n;
  const auto squares = deviations.square().sum(at::IntArrayRef{0, 2}).to(at::kDouble), excess = n * rest.square();
  // Both may be infinite. torch.cat would lose empty tensors in second derivatives.
  return at::stack({pivot.to(at::kDouble) + rest, squares - excess.masked_fill(squares.isinf(), 0.0)}).view(-1);
}

double largest(const at::Tensor& x) {
  return compute_dtype(x) == at::kDouble ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
}

double rounded(double number, const at::Tensor& x) {
  return compute_dtype(x) == at::kDouble ? number : static_cast<double>(static_cast<float>(number));
}

at::Tensor normalized_by_torch(const at::Tensor& input, const std::pair<at::Tensor, at::Tensor>& moments,
                               const MomentGroups& groups, const at::Tensor& weight, const at::Tensor& bias,
                               const NormOptions& options) {
  const auto dtype = compute_dtype(input);
  const auto x = groups.channels.view(input).to(dtype);
  const auto variance = moments.second / groups.total;
  const auto inverse = (variance.masked_fill(variance > largest(input), options.beyond) + options.eps).rsqrt();
  const auto own = groups.own.to(input.device());
  const auto mean = moments.first.index_select(0, own), pivot = mean.detach().to(dtype);
  const auto by_turns = [&](const at::Tensor& values) {
    const auto n = values.numel();
    return n == 0 ? values : values.reshape({1, n}).expand({own.numel() / n, n}).reshape({-1});
  };
  auto scale = inverse.index_select(0, own);
  if (weight.defined()) scale = scale * by_turns(weight);
  auto shift = (pivot.to(at::kDouble) - mean) * scale;
  if (bias.defined()) shift = shift + by_turns(bias);
  const auto y = (x - by_channel(pivot)) * by_channel(scale.to(dtype)) + by_channel(shift.to(dtype));
  return y.to(options.dtype).view(input.sizes());
}

}  // namespace distdl::kernels
