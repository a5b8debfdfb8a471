#include "autograd/unmodified.hpp"

#include <torch/csrc/autograd/variable.h>

#include <stdexcept>

#include "agreement/derivatives.hpp"
#include "base/text.hpp"

namespace distdl::autograd {

void check_input_unmodified(const std::string& layer, const at::Tensor& input, const at::Tensor& result) {
  if (!result.requires_grad() || input.is_inference() || agreement::in_transform()) return;
  const auto counter = torch::autograd::impl::version_counter(input);
  result.register_hook(
      [layer, counter, expected = counter.current_version(), shape = input.sizes().vec()](const at::Tensor&) {
        const auto version = counter.current_version();
        if (version == expected) return;
        throw std::runtime_error(layer +
                                 ": one of the variables needed for gradient computation has been modified by an "
                                 "inplace operation: the input, of shape " +
                                 base::text(shape) + ", is at version " + std::to_string(version) +
                                 "; expected version " + std::to_string(expected) + " instead");
      });
}

}  // namespace distdl::autograd
