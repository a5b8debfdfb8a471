#include "agreement/layer_facts.hpp"

#include <ATen/FunctionalTensorWrapper.h>

#include <algorithm>

namespace distdl::agreement {

namespace {

bool is_functional(const Input& input) {
  return input.is_usable() && at::functionalization::impl::isFunctionalTensor(input.tensor);
}

bool is_wrapped(const Input& input) {
  constexpr c10::DispatchKeySet transforms(
      {c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper});
  return is_functional(input) || (input.is_usable() && input.tensor.key_set().has_any(transforms));
}

bool has_no_values(const Input& input) {
  return input.tensor.defined() &&
         (!input.error.empty() || input.tensor.is_meta() || input.tensor.layout() != at::kStrided);
}

/// Transforms of torch.func call a layer once for many tensors, so parameters on other ranks would not match.
bool is_transformed(const LayerFacts& facts) {
  if (!in_transform()) return false;
  return std::ranges::any_of(facts.tensors, is_functional) || std::ranges::any_of(facts.parameters, is_wrapped);
}

/// The reason to refuse a call whose tensors this rank can use; null if there is none. The order decides between
/// several reasons.
const char* reason_against(const LayerFacts& facts) {
  if (is_transformed(facts)) {
    return "meets parameters within the transforms of torch.func; these go through primitives only";
  }
  if (std::ranges::any_of(facts.tensors, is_functional)) {  // a wrapper has no memory
    return "is wrapped for functionalization; it has to be a plain torch.Tensor";
  }
  if (std::ranges::any_of(facts.parameters, has_no_values) || std::ranges::any_of(facts.buffers, has_no_values)) {
    return "meets a parameter or buffer that has no values: sparse, fake, or on the meta device";
  }
  return nullptr;
}

/// Whether a tensor is on a device of its own. Numbers on the CPU go with tensors on any device.
bool has_device(const Input& input) { return input.is_usable() && input.tensor.dim() != 0 && !input.tensor.is_meta(); }

/// Gives the first tensor an error if it is on another device than the parameters or buffers; and the second one if it
/// is on another device than the first, as the target of a loss. Whether it did. A model may move its other inputs.
bool refuse_other_device(LayerFacts& facts) {
  auto& tensors = facts.tensors;
  const auto differs = [](Input& input, const Input& from, const char* what) {
    if (!has_device(input) || input.tensor.numel() == 0 || input.tensor.device() == from.tensor.device()) return false;
    input.error = "is on " + input.tensor.device().str() + ", and " + what + " on " + from.tensor.device().str();
    input.error_kind = Structure::Error::state;
    return true;
  };
  for (const auto* const own : {&facts.parameters, &facts.buffers}) {
    const auto first = std::ranges::find_if(*own, has_device);
    if (first != own->end() && !tensors.empty() && differs(tensors[0], *first, "the weights are")) return true;
  }
  return facts.parameters.empty() && tensors.size() > 1 && has_device(tensors[0]) && tensors[0].tensor.numel() != 0 &&
         differs(tensors[1], tensors[0], "the first argument is");
}

}  // namespace

LayerFacts facts_or_errors(LayerFacts facts, const std::vector<bool>& optional) {
  for (std::size_t i = 0; i < facts.tensors.size(); ++i) {
    auto& input = facts.tensors[i];
    if (i < optional.size() && !optional[i] && input.is_absent()) {
      input.error = "is of type NoneType; it has to be a torch.Tensor";
    }
  }
  if (!facts.problem.error.empty()) {
    const auto fails = [](const Input& input) { return !input.error.empty(); };
    if (std::ranges::any_of(facts.tensors, fails)) return {.tensors = std::move(facts.tensors)};
    return {.tensors = {std::move(facts.problem)}};
  }
  if (const auto* const reason = reason_against(facts)) return {.tensors = {{at::Tensor(), reason}}};
  if (refuse_other_device(facts)) return {.tensors = std::move(facts.tensors)};
  return facts;
}

}  // namespace distdl::agreement
