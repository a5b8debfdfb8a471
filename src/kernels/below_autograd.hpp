// Computation that torch's tools do not see.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace distdl::kernels {

/// While it lives, neither autograd nor modes see torch's functions, such as those within operators: selective
/// checkpointing would leave out functions that write to a tensor.
struct BelowAutograd {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard below_modes{
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
};

}  // namespace distdl::kernels
