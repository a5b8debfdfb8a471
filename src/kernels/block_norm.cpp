#include "kernels/block_norm.hpp"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/below_autograd.hpp"
#include "kernels/channel_values.hpp"
#include "kernels/differentiation.hpp"
#include "kernels/norm_by_torch.hpp"
#include "kernels/torch_versions.hpp"

namespace distdl::kernels {

namespace {

using torch::autograd::edge_list;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

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
  void leave(at::Tensor gradient, Values scale) {
    left_ = {std::move(gradient), std::move(scale), torch::autograd::get_current_graph_task_id()};
  }

  variable_list apply(variable_list&& gradients) override {
    auto left = std::exchange(left_, {});
    if (left.pass != torch::autograd::get_current_graph_task_id()) left = {};  // of a pass that was interrupted
    const auto x = x_.unpack();
    if (!gradients[0].defined() && !gradients[1].defined() && !left.gradient.defined()) return variable_list(1);
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
    if (!left.gradient.defined()) return {combined(x, gradients[0], {}, gradients[1])};
    const auto result = combined(x, left.gradient, left.scale, gradients[1]);
    // In second derivatives a gradient may come from a recorded pass, too.
    return {gradients[0].defined() ? result + gradients[0] : result};
  }

  void release_variables() override {
    x_.reset_data();
    left_ = {};
  }

 private:
  at::Tensor combined(const at::Tensor& x, const at::Tensor& gradient, Values scale, const at::Tensor& message) const {
    const auto n = static_cast<std::size_t>(means_.numel());
    Values pivots(n), slopes(n), constants(n);
    const auto count = std::max(1.0, n == 0 ? 0.0 : static_cast<double>(x.numel()) / static_cast<double>(n));
    const auto arrived = message.defined() ? in_memory(message).contiguous() : at::Tensor();
    const auto *const means = means_.const_data_ptr<double>(), *const of_means = message.defined()
                                                                                     ? arrived.const_data_ptr<double>()
                                                                                     : nullptr;
    for (std::size_t c = 0; c < n; ++c) {
      pivots[c] = rounded(means[c], x);
      slopes[c] = of_means == nullptr ? 0.0 : 2 * of_means[n + c];
      constants[c] = (of_means == nullptr ? 0.0 : of_means[c] / count) - slopes[c] * (means[c] - pivots[c]);
    }
    if (scale.empty()) scale.assign(n, 1.0);
    return combine_channels(gradient.defined() ? in_order_of(gradient, x) : at::zeros_like(x), scale, x, channels_,
                            pivots, slopes, constants);
  }

  SavedVariable x_;
  Channels channels_;
  at::Tensor means_;  // undefined where there are no kernels
  struct Left {
    at::Tensor gradient;
    Values scale;
    int pass = -1;
  } left_;
};

/// Values of the groups, from their moments.
struct GroupValues {
  GroupValues(const MomentGroups& groups, const at::Tensor& mean, const at::Tensor& squares, const at::Tensor& x,
              const NormOptions& options)
      : pivot(static_cast<std::size_t>(groups.size)), inverse(pivot.size()), slope_of_inverse(pivot.size()) {
    const auto *const means = mean.const_data_ptr<double>(), *const all_squares = squares.const_data_ptr<double>();
    for (std::size_t g = 0; g < pivot.size(); ++g) {
      const double variance = all_squares[g] / groups.total;
      const bool is_beyond = variance > largest(x);
      pivot[g] = rounded(means[g], x);
      inverse[g] = 1.0 / std::sqrt((is_beyond ? options.beyond : variance) + options.eps);
      slope_of_inverse[g] = is_beyond ? 0.0 : -0.5 * inverse[g] * inverse[g] * inverse[g] / groups.total;
    }
  }

  Values pivot;             // the mean, rounded to the dtype in which x is computed
  Values inverse;           // of the standard deviation
  Values slope_of_inverse;  // by the squares
};

/// The backward pass of normalize_block().
class NormalizationBackward final : public torch::autograd::Node {
 public:
  NormalizationBackward(const at::Tensor& x, const at::Tensor& messages, std::shared_ptr<const MomentGroups> groups,
                        const at::Tensor& weight, const at::Tensor& bias, const NormOptions& options,
                        Normalized forward)
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
    const auto weights = numbers_of(weight);
    const auto n = static_cast<std::size_t>(groups_->own.numel()), groups = static_cast<std::size_t>(groups_->size);
    const auto* const own = groups_->own.const_data_ptr<std::int64_t>();
    const auto* const means = mean_.const_data_ptr<double>();
    Values pivot(n), scale(n), of_mean(groups), of_squares(groups), of_weight(weights.size()),
        of_bias(bias.defined() ? static_cast<std::size_t>(bias.numel()) : 0);
    for (std::size_t c = 0; c < n; ++c) {
      pivot[c] = of.pivot[own[c]];
      scale[c] = of.inverse[own[c]] * by_turns(weights, c, 1.0);
    }
    const auto [sums, products] = channel_products(gradient, x, groups_->channels, pivot);
    for (std::size_t c = 0; c < n; ++c) {
      const auto g = own[c];
      // y = (x - pivot) * scale + shift, where shift = (pivot - mean) * scale + bias
      const auto of_scale = products[c] + sums[c] * (pivot[c] - means[g]);
      of_mean[g] -= sums[c] * scale[c];
      of_squares[g] += of_scale * by_turns(weights, c, 1.0) * of.slope_of_inverse[g];
      if (!of_weight.empty()) of_weight[c % of_weight.size()] += of_scale * of.inverse[g];
      if (!of_bias.empty()) of_bias[c % of_bias.size()] += sums[c];
    }
    variable_list results(4);
    auto* const moments = dynamic_cast<MomentsBackward*>(next_edge(0).function.get());
    if (moments != nullptr && task_should_compute_output(0)) moments->leave(gradient, std::move(scale));
    if (task_should_compute_output(1)) {
      results[1] = groups_->merge_backward(messages, mean_, of_mean.data(), of_squares.data());
    }
    if (task_should_compute_output(2)) results[2] = as_tensor(of_weight, weight);
    if (task_should_compute_output(3)) results[3] = as_tensor(of_bias, bias);
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
  const auto weights = numbers_of(weight), biases = numbers_of(bias);
  const auto n = static_cast<std::size_t>(groups.own.numel());
  Values pivot(n), scale(n), shift(n);
  const auto* const own = groups.own.const_data_ptr<std::int64_t>();
  const auto* const means = mean.const_data_ptr<double>();
  for (std::size_t c = 0; c < n; ++c) {
    pivot[c] = of.pivot[own[c]];
    scale[c] = of.inverse[own[c]] * by_turns(weights, c, 1.0);
    shift[c] = (pivot[c] - means[own[c]]) * scale[c] + by_turns(biases, c, 0.0);
  }
  const auto dtype = options.dtype == x.scalar_type() ? options.dtype : compute_dtype(x);
  return {normalize_channels(x, groups.channels, pivot, scale, shift, dtype), mean, squares};
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
  const auto node = make_node<MomentsBackward>(x, channels, std::move(means));
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
    torch::autograd::set_history(forward.result,
                                 make_node<NormalizationBackward>(x, messages, groups, w, b, options, forward));
  }
  forward.result = forward.result.to(options.dtype);
  return forward;
}

}  // namespace distdl::kernels
