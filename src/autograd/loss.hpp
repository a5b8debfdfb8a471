// The value of a loss, from the parts of its workers.
#pragma once

#include <ATen/core/Tensor.h>

#include <variant>

#include "operators/linear_operator.hpp"

namespace distdl::autograd {

/// The sum of the workers' numerators, divided by that of their denominators if `divides`, in this dtype on every rank.
///
/// The gradient flows from the first worker's value alone, so that the loss counts once; other values only bring their
/// ranks into the backward pass. Denominators are constants. Without a part the numerator has zero volume.
///
/// Collective over the ranks of `sum`, which adds up two numbers of each rank. A rank that knows none passes null.
at::Tensor loss_of_parts(const at::Tensor& numerator, const std::variant<double, at::Tensor>& denominator,
                         operators::Primitive* sum, at::ScalarType dtype, bool divides, bool has_part, bool is_first);

}  // namespace distdl::autograd
