#include "kernels/block_norm.hpp"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/below_autograd.hpp"

namespace distdl::kernels {

namespace {

using torch::autograd::edge_list;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

bool has_forward_derivatives() { return torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr; }

/// Whether the derivatives of what is computed now are needed.
bool is_differentiated() { return c10::GradMode::is_enabled() || has_forward_derivatives(); }

at::Tensor by_channel(const at::Tensor& values) { return values.view({1, -1, 1}); }

at::Tensor moments_by_torch(const at::Tensor& input, const Channels& channels) {
  const auto x = channels.view(input).to(compute_dtype(input));
  const auto n = static_cast<double>(std::max<std::int64_t>(1, x.size(0) * x.size(2)));
  const auto pivot = x.detach().sum({0, 2}) / n;
  const auto deviations = x - by_channel(pivot);
  const auto rest = deviations.sum({0, 2}).to(at::kDouble) / n;
  const auto squares = deviations.square().sum({0, 2}).to(at::kDouble), excess = n * rest.square();
  // Both may be infinite. torch.cat would lose empty tensors in second derivatives.
  return at::stack({pivot.to(at::kDouble) + rest, squares - excess.masked_fill(squares.isinf(), 0.0)}).view(-1);
}

/// The largest number of the dtype in which x is computed.
double largest(const at::Tensor& x) {
  return compute_dtype(x) == at::kDouble ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
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

/// The gradients of y = call(inputs), by torch, for the inputs that a node has edges to. They have derivatives where
/// gradients are recorded.
template <class Call>
variable_list gradients_by_torch(const torch::autograd::Node& node, variable_list inputs, const at::Tensor& gradient,
                                 const Call& call) {
  const bool recorded = c10::GradMode::is_enabled();
  const at::AutoGradMode on(true);
  variable_list chosen;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad() || !node.task_should_compute_output(i)) continue;
    inputs[i] = inputs[i].alias();  // without the hooks of the tensor
    chosen.push_back(inputs[i]);
    places.push_back(i);
  }
  variable_list results(inputs.size());
  if (chosen.empty()) return results;
  const auto gradients = torch::autograd::grad({call(inputs)}, chosen, {gradient}, recorded, recorded, true);
  for (std::size_t i = 0; i < places.size(); ++i) results[places[i]] = gradients[i];
  return results;
}

/// The backward pass of block_moments().
class MomentsBackward final : public torch::autograd::Node {
 public:
  MomentsBackward(const at::Tensor& x, Channels channels, at::Tensor means)
      : Node(torch::autograd::collect_next_edges(x)), x_(x, false), channels_(channels), means_(std::move(means)) {}

  std::string name() const override { return "distdl::block_moments backward"; }

  /// Leaves gradient * scale, a part of the gradient of x, to this pass: it reads x anyway.
  void leave(at::Tensor gradient, at::Tensor scale) { left_ = {std::move(gradient), std::move(scale)}; }

  variable_list apply(variable_list&& gradients) override {
    const auto [left, scale] = std::exchange(left_, {});
    const auto x = x_.unpack();
    if (!gradients[0].defined() && !gradients[1].defined() && !left.defined()) return variable_list(1);
    if (is_differentiated() || !means_.defined()) {
      variable_list results(1);
      if (gradients[1].defined()) {
        results = gradients_by_torch(*this, {x}, gradients[1],
                                     [&](const variable_list& of) { return moments_by_torch(of[0], channels_); });
      }
      if (gradients[0].defined()) results[0] = results[0].defined() ? results[0] + gradients[0] : gradients[0];
      return results;
    }
    const BelowAutograd guard;
    return {combined(x, left.defined() ? left : gradients[0], scale, gradients[1])};
  }

  void release_variables() override {
    x_.reset_data();
    left_ = {};
  }

 private:
  at::Tensor combined(const at::Tensor& x, const at::Tensor& gradient, const at::Tensor& scale,
                      const at::Tensor& message) const {
    const auto n = means_.numel();
    const auto options = x.options().dtype(compute_dtype(x));
    const auto values = at::empty({3, n}, means_.options());
    auto *const pivots = values.data_ptr<double>(), *const slopes = pivots + n, *const constants = slopes + n;
    const auto pivot = means_.to(options.dtype());
    const auto wide = pivot.to(at::kDouble), arrived = message.defined() ? message.contiguous() : at::zeros({2 * n}, means_.options());
    const auto *const means = means_.const_data_ptr<double>(), *const rounded = wide.const_data_ptr<double>(),
                      *const of_means = arrived.const_data_ptr<double>(), *const of_squares = of_means + n;
    const auto count = n == 0 ? 1.0 : static_cast<double>(x.numel()) / static_cast<double>(n);
    for (std::int64_t c = 0; c < n; ++c) {
      pivots[c] = rounded[c];
      slopes[c] = 2 * of_squares[c];
      constants[c] = of_means[c] / std::max(count, 1.0) - slopes[c] * (means[c] - rounded[c]);
    }
    const auto converted = values.to(options.dtype());
    return combine_channels(gradient.defined() ? in_order_of(gradient, x) : at::zeros_like(x),
                            scale.defined() ? scale : at::ones({n}, options), x, channels_, converted[0], converted[1],
                            converted[2]);
  }

  SavedVariable x_;
  Channels channels_;
  at::Tensor means_;  // undefined where there are no kernels
  std::pair<at::Tensor, at::Tensor> left_;
};

/// Values of the groups, from their moments.
struct GroupValues {
  GroupValues(const MomentGroups& groups, const at::Tensor& mean, const at::Tensor& squares, const at::Tensor& x,
              const NormOptions& options)
      : pivot(static_cast<std::size_t>(groups.size)), inverse(pivot.size()), slope_of_inverse(pivot.size()) {
    const bool is_double = compute_dtype(x) == at::kDouble;
    const auto *const means = mean.const_data_ptr<double>(), *const all_squares = squares.const_data_ptr<double>();
    for (std::size_t g = 0; g < pivot.size(); ++g) {
      const double variance = all_squares[g] / groups.total;
      const bool is_beyond = variance > largest(x);
      pivot[g] = is_double ? means[g] : static_cast<double>(static_cast<float>(means[g]));
      inverse[g] = 1.0 / std::sqrt((is_beyond ? options.beyond : variance) + options.eps);
      slope_of_inverse[g] = is_beyond ? 0.0 : -0.5 * inverse[g] * inverse[g] * inverse[g] / groups.total;
    }
  }

  std::vector<double> pivot;             // the mean, rounded to the dtype in which x is computed
  std::vector<double> inverse;           // of the standard deviation
  std::vector<double> slope_of_inverse;  // by the squares
};

/// Weights or biases, which channels have by turns.
struct ByTurns {
  at::Tensor values;
  std::int64_t count;

  double operator()(std::int64_t channel, double otherwise) const {
    return count == 0 ? otherwise : values.const_data_ptr<double>()[channel % count];
  }
};

ByTurns by_turns(const at::Tensor& values) {
  if (!values.defined()) return {values, 0};
  return {values.to(at::kDouble).contiguous(), values.numel()};
}

/// The backward pass of normalize_block().
class NormalizationBackward final : public torch::autograd::Node {
 public:
  NormalizationBackward(const at::Tensor& x, const at::Tensor& messages, std::shared_ptr<const MomentGroups> groups,
                        const at::Tensor& weight, const at::Tensor& bias, const NormOptions& options, Normalized forward)
      : Node(torch::autograd::collect_next_edges(x, messages, weight, bias)),
        x_(x, false),
        messages_(messages, false),
        weight_(weight, false),
        bias_(bias, false),
        groups_(std::move(groups)),
        options_(options),
        mean_(std::move(forward.mean)),
        squares_(std::move(forward.squares)) {}

  std::string name() const override { return "distdl::normalize_block backward"; }

  variable_list apply(variable_list&& gradients) override {
    const auto x = x_.unpack(), messages = messages_.unpack(), weight = weight_.unpack(), bias = bias_.unpack();
    if (!gradients[0].defined()) return variable_list(4);
    if (is_differentiated() || !has_channel_kernels(x, groups_->channels)) {
      return gradients_by_torch(*this, {x, messages, weight, bias}, gradients[0], [&](const variable_list& of) {
        return normalized_by_torch(of[0], groups_->merge_by_torch(of[1]), *groups_, of[2], of[3], options_);
      });
    }
    const BelowAutograd guard;
    return by_kernels(x, messages, weight, bias, in_order_of(gradients[0], x));
  }

  void release_variables() override {
    for (auto* const saved : {&x_, &messages_, &weight_, &bias_}) saved->reset_data();
  }

 private:
  variable_list by_kernels(const at::Tensor& x, const at::Tensor& messages, const at::Tensor& weight,
                           const at::Tensor& bias, const at::Tensor& gradient) {
    const GroupValues of(*groups_, mean_, squares_, x, options_);
    const auto weights = by_turns(weight), biases = by_turns(bias);
    const auto n = groups_->own.numel();
    const auto* const own = groups_->own.const_data_ptr<std::int64_t>();
    std::vector<double> pivot(n), scale(n), sums(n), products(n), of_mean(groups_->size), of_squares(groups_->size);
    for (std::int64_t c = 0; c < n; ++c) {
      pivot[c] = of.pivot[own[c]];
      scale[c] = of.inverse[own[c]] * weights(c, 1.0);
    }
    channel_products(gradient, x, groups_->channels, pivot.data(), sums.data(), products.data());
    auto of_weight = at::zeros({weights.count}, mean_.options()), of_bias = at::zeros({biases.count}, mean_.options());
    auto *const to_weight = of_weight.data_ptr<double>(), *const to_bias = of_bias.data_ptr<double>();
    const auto* const means = mean_.const_data_ptr<double>();
    for (std::int64_t c = 0; c < n; ++c) {
      const auto g = own[c];
      // y = (x - pivot) * scale + shift, where shift = (pivot - mean) * scale + bias
      const auto of_scale = products[c] + sums[c] * (pivot[c] - means[g]);
      of_mean[g] -= sums[c] * scale[c];
      of_squares[g] += of_scale * weights(c, 1.0) * of.slope_of_inverse[g];
      if (weights.count > 0) to_weight[c % weights.count] += of_scale * of.inverse[g];
      if (biases.count > 0) to_bias[c % biases.count] += sums[c];
    }
    variable_list results(4);
    if (auto* const moments = dynamic_cast<MomentsBackward*>(next_edge(0).function.get());
        moments != nullptr && task_should_compute_output(0)) {
      moments->leave(gradient, at::tensor(scale, mean_.options()).to(compute_dtype(x)));
    }
    if (task_should_compute_output(1)) {
      results[1] = groups_->merge_backward(messages, mean_, of_mean.data(), of_squares.data());
    }
    if (task_should_compute_output(2)) results[2] = of_weight.to(weight.scalar_type()).view(weight.sizes());
    if (task_should_compute_output(3)) results[3] = of_bias.to(bias.scalar_type()).view(bias.sizes());
    return results;
  }

  SavedVariable x_, messages_, weight_, bias_;
  std::shared_ptr<const MomentGroups> groups_;
  NormOptions options_;
  at::Tensor mean_, squares_;  // of the groups
};

Normalized normalized_by_kernels(const at::Tensor& x, const at::Tensor& messages, const MomentGroups& groups,
                                 const at::Tensor& weight, const at::Tensor& bias, const NormOptions& options) {
  const auto [mean, squares] = groups.merge(messages);
  const GroupValues of(groups, mean, squares, x, options);
  const auto weights = by_turns(weight), biases = by_turns(bias);
  const auto n = groups.own.numel();
  const auto values = at::empty({3, n}, mean.options());
  auto *const pivots = values.data_ptr<double>(), *const scales = pivots + n, *const shifts = scales + n;
  const auto *const own = groups.own.const_data_ptr<std::int64_t>();
  const auto* const means = mean.const_data_ptr<double>();
  for (std::int64_t c = 0; c < n; ++c) {
    const auto g = own[c];
    pivots[c] = of.pivot[g];
    scales[c] = of.inverse[g] * weights(c, 1.0);
    shifts[c] = (pivots[c] - means[g]) * scales[c] + biases(c, 0.0);
  }
  const auto converted = values.to(compute_dtype(x));
  const auto dtype = options.dtype == x.scalar_type() ? options.dtype : compute_dtype(x);
  auto y = normalize_channels(x, groups.channels, converted[0], converted[1], converted[2], dtype);
  return {y, mean, squares};
}

bool requires_grad(const at::Tensor& x) { return x.defined() && x.requires_grad(); }

}  // namespace

std::pair<at::Tensor, at::Tensor> block_moments(const at::Tensor& input, const MomentGroups& groups) {
  const auto& channels = groups.channels;
  if (input.dim() < channels.last || channels.count(input) != groups.own.numel()) {
    throw std::invalid_argument("the channels of a block do not fit the groups of its moments");
  }
  if (has_forward_derivatives()) return {input, moments_by_torch(input, channels)};
  const auto x = has_channel_kernels(input, channels) ? input : input.contiguous();
  const auto n = groups.own.numel();
  at::Tensor message, means;
  {
    const BelowAutograd guard;
    if (has_channel_kernels(x, channels)) {
      message = at::empty({2 * n}, x.options().dtype(at::kDouble));
      channel_moments(x, channels, message.data_ptr<double>(), message.data_ptr<double>() + n);
      means = message.narrow(0, 0, n);
    } else {
      message = moments_by_torch(x, channels);
    }
  }
  if (!x.requires_grad() || !c10::GradMode::is_enabled()) return {x, message};
  auto same = x.detach();
  const auto node = c10::make_intrusive<MomentsBackward>(x, channels, std::move(means));
  torch::autograd::set_history(same, node);
  torch::autograd::set_history(message, node);
  return {same, message};
}

Normalized normalize_block(const at::Tensor& x, const at::Tensor& messages,
                           const std::shared_ptr<const MomentGroups>& groups, const std::optional<at::Tensor>& weight,
                           const std::optional<at::Tensor>& bias, const NormOptions& options) {
  const auto w = weight.value_or(at::Tensor()), b = bias.value_or(at::Tensor());
  if (has_forward_derivatives()) {
    const auto moments = groups->merge_by_torch(messages);
    return {normalized_by_torch(x, moments, *groups, w, b, options), moments.first.detach(), moments.second.detach()};
  }
  Normalized forward;
  {
    const BelowAutograd guard;
    if (has_channel_kernels(x, groups->channels)) {
      forward = normalized_by_kernels(x, messages, *groups, w, b, options);
    } else {
      const auto moments = groups->merge_by_torch(messages);
      forward = {normalized_by_torch(x, moments, *groups, w, b, options), moments.first, moments.second};
    }
  }
  const bool recorded = requires_grad(x) || requires_grad(messages) || requires_grad(w) || requires_grad(b);
  if (recorded && c10::GradMode::is_enabled()) {
    torch::autograd::set_history(forward.result, c10::make_intrusive<NormalizationBackward>(x, messages, groups, w, b,
                                                                                           options, forward));
  }
  forward.result = forward.result.to(options.dtype);
  return forward;
}

void follow(const at::Tensor& running, const at::Tensor& value, double momentum) {
  const at::NoGradGuard guard;
  running.copy_(running.mul(1 - momentum).add(value.view(-1), momentum));
}

}  // namespace distdl::kernels
