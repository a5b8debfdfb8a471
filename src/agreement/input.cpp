#include "agreement/input.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/TracerMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "kernels/elements.hpp"

namespace distdl::agreement {

namespace {

/// The reason why a tensor's values cannot be sent; empty if they can. A meta tensor is refused elsewhere: its
/// structure is known.
std::string reason_against(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    return std::string("is a ") + tensor.toString() + "; only strided tensors travel";
  }
  if (tensor.is_nested()) return "is a nested tensor; only strided tensors travel";
  if (!kernels::can_travel(tensor.scalar_type())) {
    return std::string("has dtype ") + c10::toString(tensor.scalar_type()) + ", of which torch can copy no values";
  }
  if (!tensor.has_storage()) {
    return "has no memory of its own, as within the transforms of torch.func; these go through primitives, but not "
           "through other layers, nor through a backward pass (is_grads_batched, vectorize)";
  }
  const auto shown = tensor.numel() == 0 || tensor.is_meta() || tensor._is_zerotensor()
                         ? 0
                         : at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size(),
                                                            static_cast<std::size_t>(tensor.storage_offset()));
  if (tensor.storage().nbytes() < shown) {
    return "shows " + std::to_string(shown) + " bytes of a storage that was resized to " +
           std::to_string(tensor.storage().nbytes());
  }
  return {};
}

}  // namespace

bool is_recorded() {
  using c10::impl::TorchDispatchModeKey;
  return at::tracer::impl::is_dispatch_enabled() ||
         c10::impl::TorchDispatchModeTLS::get_mode(TorchDispatchModeKey::PROXY).has_value();
}

Structure Input::structure() const {
  Structure structure;
  if (!is_usable()) {
    structure.sizes = {0};
    structure.present = !is_absent();
    if (structure.present) structure.refuse(error_kind, error);
    return structure;
  }
  if (auto why = reason_against(tensor); !why.empty()) {
    structure.refuse(Structure::Error::type, std::move(why));
    return structure;
  }
  structure.sizes = tensor.sizes().vec();
  structure.dtype = tensor.scalar_type();
  structure.device = tensor.device().type();
  if (is_recorded()) {
    structure.refuse(Structure::Error::state,
                     "is traced by torch.jit.trace or make_fx, which cannot record communication; use torch.export or "
                     "torch.compile");
  }
  if (tensor.is_meta()) structure.refuse(Structure::Error::type, "is on the meta device; it has no values");
  return structure;
}

}  // namespace distdl::agreement
