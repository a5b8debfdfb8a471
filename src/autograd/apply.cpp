#include "autograd/apply.hpp"

#include <ATen/ATen.h>
#include <ATen/SavedTensorHooks.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "agreement/deferred_errors.hpp"
#include "agreement/voting.hpp"
#include "autograd/nonblocking.hpp"
#include "comm/progress.hpp"
#include "kernels/torch_versions.hpp"

namespace distdl::autograd {

using agreement::EarlySend;
using operators::OperatorPtr;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

namespace {

at::Tensor record(const at::Tensor& x, const OperatorPtr& linear_operator, edge_list edges, EarlySend early = {});
at::Tensor record_start(const at::Tensor& x, const OperatorPtr& linear_operator, edge_list edges, EarlySend early);
at::Tensor record_wait(const at::Tensor& token);

/// Gives y = A x the forward-mode derivative that follows from that of x, which is 0 where x has none.
void push_forward(const at::Tensor& x, const at::Tensor& y, const OperatorPtr& linear_operator, bool recorded) {
  const auto& known = x._fw_grad(0);
  const auto tangent = known.defined() ? known : at::zeros_like(x);
  const auto linear_part = linear_operator->adjoint()->adjoint();  // what an operator fills in has no derivative
  y._set_fw_grad(recorded ? record(tangent, linear_part, torch::autograd::collect_next_edges(tangent))
                          : autograd::apply(linear_part, tangent),
                 0, false);
}

/// The backward pass of A: A*, applied to the gradient once all ranks agree on it.
class Adjoint : public torch::autograd::Node {
 public:
  Adjoint(OperatorPtr linear_operator, edge_list&& edges)
      : Node(std::move(edges)), operator_(std::move(linear_operator)) {
    if (at::SavedTensorDefaultHooks::get_hooks()) empty_.emplace(at::Tensor(at::empty({0})), false);
  }

  std::string name() const override { return "distdl::" + operator_->name() + kind() + " backward"; }

  variable_list apply(variable_list&& gradients) override {
    // Where activations are checkpointed, this computes them again, with all communication that this takes. It has to
    // come before any other communication.
    if (!freed_) unpack();
    const comm::InPlaceOf caller(caller_);
    const auto adjoint = operator_->adjoint();
    const bool differentiated = c10::GradMode::is_enabled();
    variable_list results(num_outputs());
    auto gradient = gradients[0];
    if (gradient.defined() && gradient.is_sparse()) gradient = gradient.to_dense();
    auto structure = gradient.defined() ? agreement::Input{gradient, ""}.structure() : agreement::Structure{};
    // Ranks may have kept the graph for this pass, and others not: all of them have to hear of it.
    if (freed_) structure.refuse(agreement::Structure::Error::state, torch::autograd::ERR_BACKWARD_TWICE);
    const bool has_tangent = gradient.defined() && gradient._fw_grad(0).defined();
    const auto lock = adjoint->id().rank_set.lock();
    comm::SendEarly send;
    if (gradient.defined() && structure.error.empty()) send = operators::early_sender(*adjoint, gradient);
    const auto agreed = agreement::agree_on_backward(adjoint->id(), adjoint->is_adjoint(), gradient.defined(),
                                                     {differentiated, has_tangent}, structure, std::move(send));
    if (!agreed.any) return results;
    if (freed_) unpack();
    if (!structure.error.empty()) {
      throw base::TypeError(adjoint->id().name + ": the gradient " + structure.error);
    }
    if (!gradient.defined()) {
      gradient = adjoint->in_step([&] { return input_metadata(0).zeros_like(); });
    }
    // The second edge leads to this node and carries no gradient. Without it, a derivative of the derivative would come
    // back to this node only on the ranks whose gradients depend on this call, and wait there for the others.
    auto edges = differentiated ? torch::autograd::collect_next_edges(gradient) : edge_list();
    if (differentiated) edges.emplace_back(getptr(), 0);
    if (agreed.has_tangent) {  // the result is computed at once
      auto y = differentiated ? record(gradient, adjoint, std::move(edges), agreed.early)
                              : autograd::apply(adjoint, gradient, agreed.early);
      push_forward(gradient, y, adjoint, differentiated);
      results[0] = pass_on(y);
    } else {
      results[0] = differentiated ? do_record(adjoint, gradient, std::move(edges), agreed.early)
                                  : do_apply(adjoint, gradient, agreed.early);
    }
    return results;
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    if (empty_) empty_->reset_data();
    freed_ = true;
  }

 private:
  virtual const char* kind() const = 0;
  virtual at::Tensor do_apply(const OperatorPtr& adjoint, const at::Tensor& gradient, EarlySend early) const = 0;
  virtual at::Tensor do_record(const OperatorPtr& adjoint, const at::Tensor& gradient, edge_list edges,
                               EarlySend early) const = 0;
  /// The result of the backward pass for A* y once that is computed.
  virtual at::Tensor pass_on(const at::Tensor& y) const = 0;

  /// Throws if the graph was freed.
  void unpack() {
    const std::lock_guard lock(mutex_);
    if (empty_) empty_->unpack();
    if (freed_) throw std::runtime_error(torch::autograd::ERR_BACKWARD_TWICE);
  }

  OperatorPtr operator_;
  comm::ProgressPtr caller_ = comm::progress_of_this_thread();
  std::optional<torch::autograd::SavedVariable>
      empty_;  // has no elements: for the hooks on saved tensors, such as checkpointing's
  std::atomic<bool> freed_ = false;
};

/// The backward pass of a call.
class Backward final : public Adjoint {
 public:
  using Adjoint::Adjoint;

 private:
  const char* kind() const override { return ""; }
  at::Tensor do_apply(const OperatorPtr& adjoint, const at::Tensor& gradient, EarlySend early) const override {
    return autograd::apply(adjoint, gradient, early);
  }
  at::Tensor do_record(const OperatorPtr& adjoint, const at::Tensor& gradient, edge_list edges,
                       EarlySend early) const override {
    return record(gradient, adjoint, std::move(edges), early);
  }
  at::Tensor pass_on(const at::Tensor& y) const override { return y; }
};

/// The backward pass of wait(): it starts A*, and its token goes to StartBackward. The nodes of what was computed
/// between start() and wait() run between these two, for torch runs nodes in the reverse of their order.
class WaitBackward final : public Adjoint {
 public:
  using Adjoint::Adjoint;

 private:
  const char* kind() const override { return " wait"; }
  at::Tensor do_apply(const OperatorPtr& adjoint, const at::Tensor& gradient, EarlySend early) const override {
    return autograd::start(adjoint, gradient, false, early);
  }
  at::Tensor do_record(const OperatorPtr& adjoint, const at::Tensor& gradient, edge_list edges,
                       EarlySend early) const override {
    return record_start(gradient, adjoint, std::move(edges), early);
  }
  at::Tensor pass_on(const at::Tensor& y) const override { return completed(y); }
};

/// The backward pass of start(): it waits for A*.
class StartBackward final : public torch::autograd::Node {
 public:
  StartBackward(const OperatorPtr& linear_operator, edge_list&& edges)
      : Node(std::move(edges)), name_("distdl::" + linear_operator->name() + " start backward") {}

  std::string name() const override { return name_; }

  variable_list apply(variable_list&& tokens) override {
    const comm::InPlaceOf caller(caller_);
    variable_list results(num_outputs());
    if (tokens[0].defined()) results[0] = recorded(tokens[0]) ? record_wait(tokens[0]) : autograd::wait(tokens[0]);
    return results;
  }

 private:
  std::string name_;
  comm::ProgressPtr caller_ = comm::progress_of_this_thread();
};

/// A x, with A* in the backward pass, also if the gradient of this rank's x is not asked for: other ranks need this
/// rank's part.
at::Tensor record(const at::Tensor& x, const OperatorPtr& linear_operator, edge_list edges, EarlySend early) {
  auto y = autograd::apply(linear_operator, x, early);
  torch::autograd::set_history(y, make_node<Backward>(linear_operator, std::move(edges)));
  return y;
}

at::Tensor record_start(const at::Tensor& x, const OperatorPtr& linear_operator, edge_list edges, EarlySend early) {
  auto token = start(linear_operator, x, true, early);
  torch::autograd::set_history(token, make_node<StartBackward>(linear_operator, std::move(edges)));
  return token;
}

at::Tensor record_wait(const at::Tensor& token) {
  const c10::InferenceMode off(false);  // all ranks recorded the start, so all have to record the wait
  auto y = wait(token);
  torch::autograd::set_history(y,
                               make_node<WaitBackward>(operator_of(token), torch::autograd::collect_next_edges(token)));
  return y;
}

/// The operator and the input of a call on this rank.
struct Agreed {
  OperatorPtr linear_operator;
  at::Tensor x;
  agreement::Derivatives derivatives;
  EarlySend early = {};
};

Agreed outside(const at::Tensor& x) {
  static const auto* const clone =  // never destroyed: threads may outlive the end of main
      new OperatorPtr(c10::make_intrusive<operators::Clone>());
  return {*clone, x, agreement::Input{x, ""}.derivatives()};
}

at::Tensor in_dtype(const at::Tensor& x, c10::ScalarType dtype) { return x.scalar_type() == dtype ? x : x.to(dtype); }

Agreed agree(operators::Primitive& primitive, const agreement::Input& x) {
  if (!primitive.active()) {
    if (!x.tensor.defined()) throw base::TypeError(primitive.name() + ": the input " + x.error);
    return outside(x.tensor);
  }
  auto prepared = primitive.prepare(x, true);
  return {std::move(prepared.linear_operator), in_dtype(x.tensor, prepared.dtype), prepared.derivatives,
          prepared.early};
}

at::Tensor carry_out(const Agreed& call) {
  const auto& [linear_operator, x, derivatives, early] = call;
  const auto y = derivatives.requires_grad ? record(x, linear_operator, torch::autograd::collect_next_edges(x), early)
                                           : autograd::apply(linear_operator, x, early);
  if (derivatives.has_tangent) push_forward(x, y, linear_operator, derivatives.requires_grad);
  return y;
}

}  // namespace

at::Tensor call(operators::Primitive& primitive, const agreement::Input& x) {
  const auto lock = primitive.lock();
  return carry_out(agree(primitive, x));
}

at::Tensor call_unseen(operators::Primitive& primitive, const agreement::Input& x) {
  const c10::impl::ExcludeDispatchKeyGuard below_modes(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  return call(primitive, x);
}

at::Tensor call(const OperatorPtr& linear_operator, const at::Tensor& x, agreement::Derivatives derivatives) {
  return carry_out({linear_operator, x, derivatives});
}

at::Tensor call_adjoint(operators::Primitive& primitive, const agreement::Input& x, const at::Tensor& y) {
  if (!primitive.active()) return carry_out(outside(y.detach()));
  const auto lock = primitive.lock();
  return autograd::apply(primitive.prepare(x, false).linear_operator->adjoint(), y.detach());
}

at::Tensor call_traced(operators::Primitive& primitive, const agreement::Input& x, bool linear, bool differentiated) {
  if (!primitive.active()) return autograd::apply(outside(x.tensor).linear_operator, x.tensor);
  const auto lock = primitive.lock();
  const auto prepared = primitive.prepare_traced(x, differentiated);
  const auto& applied = prepared.linear_operator;
  return autograd::apply(linear ? applied->adjoint()->adjoint() : applied, in_dtype(x.tensor, prepared.dtype));
}

std::unique_ptr<Started> start(operators::Primitive& primitive, const agreement::Input& x) {
  const auto lock = primitive.lock();
  const auto call = agree(primitive, x);
  auto token = call.derivatives.has_tangent ? completed(carry_out(call))
               : call.derivatives.requires_grad
                   ? record_start(call.x, call.linear_operator, torch::autograd::collect_next_edges(call.x), call.early)
                   : start(call.linear_operator, call.x, false, call.early);
  // The second forward pass of checkpointing, which runs within a backward pass, ends as soon as it has what it needs.
  const bool may_be_dropped = torch::autograd::get_current_graph_task_id() != -1;
  return std::make_unique<Started>(primitive.name(), std::move(token), may_be_dropped);
}

Started::~Started() {
  if (waited() || may_be_dropped_) return;
  agreement::defer_error("comes after " + name_ +
                         " was started and dropped; what start() returns has to be passed to wait()");
}

at::Tensor Started::wait() {
  if (waited()) throw std::runtime_error(name_ + ": wait() was called before; each start() has one wait()");
  const auto token = std::exchange(token_, at::Tensor());
  return recorded(token) ? record_wait(token) : autograd::wait(token);
}

}  // namespace distdl::autograd
