// Whether what is computed now is differentiated.
#pragma once

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/forward_grad.h>

namespace distdl::kernels {

/// Whether tensors may carry forward-mode derivatives.
inline bool has_forward_derivatives() { return torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr; }

/// Whether the derivatives of what is computed now are needed.
inline bool is_differentiated() { return c10::GradMode::is_enabled() || has_forward_derivatives(); }

}  // namespace distdl::kernels
