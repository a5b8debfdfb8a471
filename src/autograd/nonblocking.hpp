// Nonblocking application of an operator, without autograd: start() hands it to the progress thread, wait() returns its
// result.
#pragma once

#include <ATen/core/Tensor.h>

#include "operators/linear_operator.hpp"

namespace distdl::autograd {

/// A x. It queues up behind operators that were started and are not done yet.
at::Tensor apply(const operators::OperatorPtr& linear_operator, const at::Tensor& x, agreement::EarlySend early = {});

/// Starts A x. The token that stands for it is a tensor without elements, so that autograd passes it on as the gradient
/// from the node of one half to the node of the other. The token keeps `recorded` for wait().
at::Tensor start(const operators::OperatorPtr& linear_operator, const at::Tensor& x, bool recorded,
                 agreement::EarlySend early = {});

/// A token for a result that is there already.
at::Tensor completed(const at::Tensor& result);

/// The operator that a token stands for, and whether autograd records its call.
const operators::OperatorPtr& operator_of(const at::Tensor& token);
bool recorded(const at::Tensor& token);

/// A x, from its token.
at::Tensor wait(const at::Tensor& token);

}  // namespace distdl::autograd
