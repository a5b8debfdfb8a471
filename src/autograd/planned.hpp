// An operator whose structure is known, for functions that have derivatives of their own and agree on a call
// themselves.
#pragma once

#include <memory>

#include "autograd/apply.hpp"

namespace distdl::autograd {

/// A for tensors of one structure. Its ranks agreed on the structure when it was planned, so applying it takes no vote;
/// whoever applies it has to know that all of them do. Without autograd. Collective over the operator's ranks.
class PlannedOperator {
 public:
  /// Agrees on the structure of x, as a call does. Throws std::invalid_argument on a rank outside of the partitions.
  static PlannedOperator of(operators::Primitive& primitive, const agreement::Input& x);

  /// A x. Throws std::invalid_argument if x has another structure than the tensor that A was planned for.
  at::Tensor apply(const at::Tensor& x) const;
  /// The first half of it; see autograd::start().
  std::unique_ptr<Started> start(const at::Tensor& x) const;
  PlannedOperator adjoint() const;

 private:
  PlannedOperator(operators::OperatorPtr linear_operator, geometry::Shape sizes, c10::ScalarType dtype)
      : operator_(std::move(linear_operator)), sizes_(std::move(sizes)), dtype_(dtype) {}
  void check(const at::Tensor& x) const;

  operators::OperatorPtr operator_;
  geometry::Shape sizes_;  // of x
  c10::ScalarType dtype_;
};

}  // namespace distdl::autograd
