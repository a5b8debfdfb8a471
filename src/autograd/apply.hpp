// The one autograd Function of this package.
#pragma once

#include <ATen/core/Tensor.h>

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

}  // namespace distdl::autograd
