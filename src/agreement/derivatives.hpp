// The derivatives that tensors carry.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace distdl::agreement {

/// Whether a tensor requires grad, and whether it has a forward-mode derivative. For several ranks or tensors: whether
/// any of them does.
struct Derivatives {
  bool requires_grad = false;
  bool has_tangent = false;

  Derivatives& operator|=(const Derivatives& other) {
    requires_grad |= other.requires_grad;
    has_tangent |= other.has_tangent;
    return *this;
  }
  bool operator==(const Derivatives&) const = default;
};

/// Whether torch records what is called now: neither under no_grad nor in inference mode.
inline bool records_gradients() { return c10::GradMode::is_enabled() && !c10::InferenceMode::is_enabled(); }

/// Whether a transform of torch.func is active.
inline bool in_transform() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

/// The derivatives of a tensor as torch would record it now; none if the tensor is not defined.
inline Derivatives derivatives_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const auto& tangent = tensor._fw_grad(0);
  const bool requires_grad = tensor.requires_grad() || (tangent.defined() && tangent.requires_grad());
  return {requires_grad && records_gradients(), tangent.defined()};
}

}  // namespace distdl::agreement
