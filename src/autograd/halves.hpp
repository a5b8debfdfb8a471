// An operator in two halves, of which autograd sees nothing: start hands it over, wait has the result.
#pragma once

#include <ATen/core/Tensor.h>

#include "operators/linear_operator.hpp"

namespace distdl::autograd {

/// A x, at once; after what was started before and is not done.
at::Tensor apply(const operators::OperatorPtr& linear_operator, const at::Tensor& x);

/// Starts A x. The token that stands for it is a tensor without elements, so that it passes through autograd as the
/// gradient from one half's node to the other's. `recorded` is kept for whoever waits.
at::Tensor start(const operators::OperatorPtr& linear_operator, const at::Tensor& x, bool recorded);

/// What a token stands for.
const operators::OperatorPtr& operator_of(const at::Tensor& token);
bool recorded(const at::Tensor& token);

/// A x, from its token.
at::Tensor wait(const at::Tensor& token);

}  // namespace distdl::autograd
