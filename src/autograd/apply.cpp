#include "autograd/apply.hpp"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

namespace distdl::autograd {

using operators::OperatorPtr;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

namespace {

/// A x, of which autograd sees nothing.
at::Tensor apply(const OperatorPtr& linear_operator, const at::Tensor& x) {
  RECORD_FUNCTION(linear_operator->text(), std::vector<c10::IValue>{});
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  // Modes see operators, not what these are made of: selective checkpointing would leave out what writes to a tensor.
  const c10::impl::ExcludeDispatchKeyGuard below_modes(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  return linear_operator->apply(x.resolve_conj().resolve_neg());  // what is lazily so in torch is not so in memory
}

at::Tensor record(const at::Tensor& x, const OperatorPtr& linear_operator, edge_list edges);

/// The backward pass of every operator: A*, applied to the gradient.
class Backward final : public torch::autograd::Node {
 public:
  Backward(OperatorPtr linear_operator, edge_list&& edges)
      : Node(std::move(edges)), operator_(std::move(linear_operator)), nothing_(at::Tensor(at::empty({0})), false) {}

  std::string name() const override { return operator_->adjoint()->text(); }

  variable_list apply(variable_list&& gradients) override {
    // Where activations are checkpointed, this computes them again, with all communication in it: before anything else.
    if (!freed_) unpack();
    const auto adjoint = operator_->adjoint();
    const bool differentiated = c10::GradMode::is_enabled();
    variable_list results(num_outputs());
    auto gradient = gradients[0];
    if (gradient.defined() && gradient.is_sparse()) gradient = gradient.to_dense();
    const auto problem = gradient.defined() ? operators::Input{gradient, ""}.structure().error : std::string();
    const bool any = operators::agree_on_backward(adjoint->site(), adjoint->is_adjoint(), gradient.defined(),
                                                  differentiated, problem);
    if (!any) return results;
    if (freed_) unpack();
    if (!problem.empty()) throw operators::TypeError(adjoint->site().name + ": the gradient " + problem);
    if (!gradient.defined()) gradient = input_metadata(0).zeros_like();
    if (!differentiated) {
      results[0] = autograd::apply(adjoint, gradient);
      return results;
    }
    // The second edge passes nothing back, but leads here. Where only some ranks' gradients depend on this call, a
    // derivative of the derivative would come through it there, and wait for ranks that have no reason to.
    auto edges = torch::autograd::collect_next_edges(gradient);
    edges.emplace_back(getptr(), 0);
    results[0] = record(gradient, adjoint, std::move(edges));
    return results;
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    nothing_.reset_data();
    freed_ = true;
  }

 private:
  /// Throws if the graph was freed.
  void unpack() {
    const std::lock_guard lock(mutex_);
    nothing_.unpack();
  }

  OperatorPtr operator_;
  torch::autograd::SavedVariable nothing_;  // saved for what torch does with what is saved
  std::atomic<bool> freed_ = false;
};

/// A x, with A* in the backward pass: also where nobody asks for this rank's gradient, since others need its part.
at::Tensor record(const at::Tensor& x, const OperatorPtr& linear_operator, edge_list edges) {
  auto y = apply(linear_operator, x);
  torch::autograd::set_history(y, c10::make_intrusive<Backward>(linear_operator, std::move(edges)));
  return y;
}

}  // namespace

at::Tensor call(operators::Primitive& primitive, const operators::Input& x) {
  if (!primitive.active()) {
    if (!x.tensor.defined()) throw operators::TypeError(primitive.name() + ": the input " + x.error);
    return pass_through(x.tensor);
  }
  const auto prepared = primitive.prepare(x);
  const auto mine = x.tensor.to(prepared.dtype);
  return prepared.requires_grad ? record(mine, prepared.linear_operator, torch::autograd::collect_next_edges(mine))
                                : apply(prepared.linear_operator, mine);
}

at::Tensor call_adjoint(operators::Primitive& primitive, const operators::Input& x, const at::Tensor& y) {
  if (!primitive.active()) return pass_through(y.detach());
  return autograd::apply(primitive.prepare(x).linear_operator->adjoint(), y.detach());
}

at::Tensor pass_through(const at::Tensor& x) {
  static const OperatorPtr outside = c10::make_intrusive<operators::Clone>();
  const bool recorded = x.requires_grad() && operators::records_gradients();
  return recorded ? record(x, outside, torch::autograd::collect_next_edges(x)) : apply(outside, x);
}

}  // namespace distdl::autograd
