#include "autograd/split_softmax.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <utility>

#include "autograd/apply.hpp"
#include "comm/progress.hpp"
#include "kernels/differentiation.hpp"
#include "kernels/torch_versions.hpp"

namespace distdl::autograd {

using agreement::Derivatives;
using agreement::Input;
using kernels::Softmax;
using torch::autograd::variable_list;

namespace {

class SoftmaxBackward final : public torch::autograd::Node {
 public:
  SoftmaxBackward(Softmax kind, const at::Tensor& x, const AlongAxis& over)
      : Node(torch::autograd::collect_next_edges(x)), kind_(kind), axis_(over.axis), sum_(over.sum) {}

  std::string name() const override { return "distdl::softmax backward"; }

  void save(const at::Tensor& result) { result_ = torch::autograd::SavedVariable(result, true); }

  variable_list apply(variable_list&& gradients) override {
    const comm::InPlaceOf caller(caller_);
    const auto gradient = gradients[0].defined() ? gradients[0] : input_metadata(0).zeros_like();
    const bool differentiated = kernels::is_differentiated();
    at::Tensor y, weighted;
    Input sums{gradient, agreement::Input{gradient, ""}.structure().error};
    if (sums.is_usable()) try {
        y = result_.unpack(getptr());
        if (differentiated) weighted = kind_ == Softmax::powers ? gradient * y : gradient;
        sums.tensor = differentiated ? weighted.sum(axis_, true) : sums_of_gradient(kind_, gradient, y, axis_);
      } catch (const c10::Error& error) {  // of this rank alone: y was written, or the graph freed
        sums = {{}, std::string("is not there: ") + error.what_without_backtrace(), agreement::Structure::Error::state};
      }
    const auto all = call_unseen(*sum_, sums);
    if (!differentiated) return {gradient_of_input(kind_, gradient, y, all, axis_)};
    return {weighted - (kind_ == Softmax::powers ? y : y.exp()) * all};
  }

  void release_variables() override { result_.reset_data(); }

 private:
  Softmax kind_;
  std::int64_t axis_;
  std::shared_ptr<operators::Primitive> sum_;
  torch::autograd::SavedVariable result_;
  comm::ProgressPtr caller_ = comm::progress_of_this_thread();
};

}  // namespace

kernels::LogSum log_sum_exp(const at::Tensor& x, const AlongAxis& over) {
  const auto derivatives = agreement::derivatives_of(x);
  const bool differentiated = derivatives.requires_grad || derivatives.has_tangent;
  const auto message = differentiated ? kernels::log_sums_by_torch(x, over.axis) : kernels::log_sums(x, over.axis);
  return kernels::merged(call_unseen(*over.gather, {message, ""}), over.axis);
}

at::Tensor softmax(Softmax kind, const at::Tensor& x, const AlongAxis& over, Derivatives derivatives) {
  derivatives |= agreement::derivatives_of(x);
  if (derivatives.has_tangent) {
    const auto all = log_sum_exp(x, over);
    const auto logarithm = x - all.largest - all.log_sum;
    return kind == Softmax::powers ? logarithm.exp() : logarithm;
  }
  const auto block = x.detach();
  auto result = at::empty(x.sizes(), x.options());
  const auto message = kernels::log_sums(block, over.axis, result);
  const auto messages = call_unseen(*over.gather, {message, ""});
  {
    const kernels::BelowAutograd guard;
    kernels::finish(kind, block, over.axis, result, message, kernels::merged(messages, over.axis));
  }
  if (derivatives.requires_grad && agreement::records_gradients()) {
    const auto node = make_node<SoftmaxBackward>(kind, x, over);
    torch::autograd::set_history(result, node);
    node->save(result);
  }
  return result;
}

}  // namespace distdl::autograd
