// Operators under autograd: the backward pass of A is A*, and that of A* is A.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "agreement/input.hpp"
#include "operators/linear_operator.hpp"

namespace distdl::autograd {

/// A primitive's call: y = A x. The backward pass applies A* in the same way, so that derivatives of any order follow.
/// If any rank's x requires grad, every rank records the call, so that all take part in its backward pass. Collective
/// over the primitive's ranks; on other ranks the result is a clone.
at::Tensor call(operators::Primitive& primitive, const agreement::Input& x);

/// A call that modes of torch do not see: its first call has more operations than others.
at::Tensor call_unseen(operators::Primitive& primitive, const agreement::Input& x);

/// The same as call() with an operator whose ranks know already that they call it together, and what is differentiated.
at::Tensor call(const operators::OperatorPtr& linear_operator, const at::Tensor& x, agreement::Derivatives derivatives);

/// A* y, without autograd; x has the structure of the forward input. Collective like a call.
at::Tensor call_adjoint(operators::Primitive& primitive, const agreement::Input& x, const at::Tensor& y);

/// A x, or only its linear part, without autograd, in a program that was compiled for the sizes of the result.
/// Collective like a call.
at::Tensor call_traced(operators::Primitive& primitive, const agreement::Input& x, bool linear, bool differentiated);

/// A call that was started. To drop it before its wait() is a mistake, unless `may_be_dropped`: the next vote that this
/// rank takes part in throws it on all ranks of the vote.
class Started {
 public:
  Started(std::string name, at::Tensor token, bool may_be_dropped)
      : name_(std::move(name)), token_(std::move(token)), may_be_dropped_(may_be_dropped) {}
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;
  ~Started();

  const std::string& name() const { return name_; }
  bool waited() const { return !token_.defined(); }

  /// y. No other rank has to call it. Throws what the operator threw on this rank; and std::runtime_error if it was
  /// called before, or if x was written in between.
  at::Tensor wait();

 private:
  std::string name_;
  at::Tensor token_;  // see nonblocking.hpp
  bool may_be_dropped_;
};

/// The first half of a call: agrees on the structure, and hands the operator over to the progress thread. Collective
/// like a call. In the backward pass wait() starts A*, and start() waits for it.
std::unique_ptr<Started> start(operators::Primitive& primitive, const agreement::Input& x);

}  // namespace distdl::autograd
