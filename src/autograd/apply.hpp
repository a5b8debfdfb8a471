// Operators under autograd: the backward pass of A is A*, and that of A* is A.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "operators/linear_operator.hpp"

namespace distdl::autograd {

/// A primitive's call: y = A x. The backward pass applies A* in the same way, so that derivatives of any order follow.
/// If any rank's x requires grad, every rank records the call, so that all take part in its backward pass. Collective
/// over the primitive's ranks; on other ranks the result is a clone.
at::Tensor call(operators::Primitive& primitive, const operators::Input& x);

/// A* y, of which autograd sees nothing; x has the structure of the forward input. Collective like a call.
at::Tensor call_adjoint(operators::Primitive& primitive, const operators::Input& x, const at::Tensor& y);

/// What a call gives on a rank that is in none of the operator's partitions.
at::Tensor pass_through(const at::Tensor& x);

/// A call that was started. To drop it before its wait() is a mistake, which the next call on this rank throws on all
/// ranks of its operator.
class Started {
 public:
  Started(std::string name, at::Tensor token) : name_(std::move(name)), token_(std::move(token)) {}
  Started(const Started&) = delete;
  Started& operator=(const Started&) = delete;
  ~Started();

  const std::string& name() const { return name_; }
  bool waited() const { return !token_.defined(); }

  /// y. Nobody else has to call it. Throws what the operator threw on this rank; and std::runtime_error if it was
  /// called before, or if x was written in between.
  at::Tensor wait();

 private:
  std::string name_;
  at::Tensor token_;  // see halves.hpp
};

/// The first half of a call: agrees on the structure, and hands the operator over to the progress thread. Collective
/// like a call. In the backward pass wait() starts A*, and start() waits for it.
std::unique_ptr<Started> start(operators::Primitive& primitive, const operators::Input& x);
std::unique_ptr<Started> start_pass_through(const at::Tensor& x);

}  // namespace distdl::autograd
