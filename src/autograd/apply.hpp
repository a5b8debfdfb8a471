// The one autograd Function of this package.
#pragma once

#include <ATen/core/Tensor.h>

#include "operators/linear_operator.hpp"

namespace distdl::autograd {

/// y = A x; the backward pass applies A* in the same way, so that derivatives of any order follow. `requires_grad` says
/// whether any rank's x does: then every rank records the operation, so that all of them take part in its backward.
at::Tensor apply(const operators::OperatorPtr& linear_operator, at::Tensor x, bool requires_grad);

/// A primitive's call. Collective over its ranks; on other ranks the result is a clone.
at::Tensor call(operators::Primitive& primitive, const operators::Input& x);

}  // namespace distdl::autograd
