#include "agreement/layer_agreement.hpp"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <stdexcept>

#include "agreement/placement.hpp"
#include "agreement/tensor_checks.hpp"
#include "base/text.hpp"

namespace distdl::agreement {

namespace {

/// Hash of a sequence of numbers: FNV-1a.
class Hash {
 public:
  Hash& add(std::uint64_t next) {
    value_ = (value_ ^ next) * 0x100000001b3U;
    return *this;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325U;
};

at::DeviceType device_of(const std::vector<Input>& inputs, const std::vector<at::Tensor>& parameters) {
  for (const auto& input : inputs) {
    if (input.tensor.defined()) return input.tensor.device().type();
  }
  const auto first = std::find_if(parameters.begin(), parameters.end(), [](const auto& p) { return p.defined(); });
  return first == parameters.end() ? at::kCPU : first->device().type();
}

std::optional<c10::ScalarType> autocast_of(at::DeviceType device) {
  if (!at::autocast::is_autocast_available(device) || !at::autocast::is_autocast_enabled(device)) return std::nullopt;
  return at::autocast::get_autocast_dtype(device);
}

std::string torch_name(c10::ScalarType dtype) { return "torch." + std::string(c10::getDtypeNames(dtype).first); }

/// Hash of what has to be equal on all ranks. It is never negative.
std::int64_t options_of(const std::vector<at::Tensor>& parameters, std::optional<c10::ScalarType> autocast,
                        std::string_view own, bool is_random, bool by_compiler) {
  Hash hash;
  hash.add(parameters.size()).add(autocast ? 1 + static_cast<std::uint64_t>(*autocast) : 0);
  for (const auto& parameter : parameters) {
    hash.add(parameter.defined() ? static_cast<std::uint64_t>(parameter.scalar_type()) : ~0U);
  }
  hash.add(std::hash<std::string_view>{}(own)).add(is_random ? 1 : 0).add(by_compiler ? 1 : 0);
  return static_cast<std::int64_t>(hash.value() >> 1);
}

/// The same as a text.
std::string text_of(const std::vector<at::Tensor>& parameters, std::optional<c10::ScalarType> autocast,
                    std::string_view own, bool is_random, bool by_compiler) {
  std::string text = "parameters of [";
  for (const auto& parameter : parameters) {
    if (text.back() != '[') text += ", ";
    text += parameter.defined() ? torch_name(parameter.scalar_type()) : "none";
  }
  text += "], autocast " + (autocast ? torch_name(*autocast) : "off");
  if (is_random) text += ", with random numbers";
  if (by_compiler) text += ", traced by a compiler";
  return own.empty() ? text : text + ", " + std::string(own);
}

}  // namespace

LayerAgreement::LayerAgreement(const std::string& layer, MPI_Comm root, const std::vector<int>& ranks,
                               std::vector<std::string> tensors)
    : agreement_(std::make_shared<OperatorId>(layer, rank_set_of(root, ranks)), std::move(tensors)) {
  if (agreement_.tensors() == 0) throw std::invalid_argument(layer + ": an agreement is on at least one tensor");
}

LayerAgreement::LayerAgreement(const LayerAgreement& other)
    : expected_(other.expected_), agreement_(other.agreement_), local_(other.local_), generation_(new_generation()) {
  agreement_.memory() = {};
}

void LayerAgreement::expect(std::string name, Shape shape, bool may_be_empty) {
  expected_.push_back({std::move(name), std::move(shape), may_be_empty});
}

std::string LayerAgreement::problem_of(const std::vector<at::Tensor>& parameters) const {
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    const auto& [name, shape, may_be_empty] = expected_[i];
    if (i >= parameters.size() || !parameters[i].defined()) return "meets no " + name;
    if (parameters[i].sizes() == at::IntArrayRef(shape) || (may_be_empty && parameters[i].numel() == 0)) continue;
    return "meets a " + name + " of shape " + base::text(parameters[i].sizes().vec()) + "; it must be " +
           base::text(shape);
  }
  return {};
}

std::vector<Structure> LayerAgreement::structures_of(const std::vector<Input>& inputs,
                                                     const std::vector<at::Tensor>& parameters) {
  std::vector<Structure> tensors;
  tensors.reserve(agreement_.tensors());
  for (std::size_t i = 0; i < agreement_.tensors(); ++i) {
    tensors.push_back(i < inputs.size() ? inputs[i].structure() : Input{}.structure());
  }
  auto& first = tensors.front();
  if (first.error_kind != Structure::Error::none) return tensors;
  auto problem = problem_of(parameters);
  if (problem.empty() && inputs.size() > tensors.size()) {
    problem =
        "is one of " + std::to_string(inputs.size()) + "; at most " + std::to_string(tensors.size()) + " are expected";
  }
  if (!problem.empty()) first.refuse(Structure::Error::value, std::move(problem));
  return tensors;
}

Change LayerAgreement::change_of(const Local& now) const {
  if (now.options != local_.options) return Change::structure;
  return now.differentiation != local_.differentiation ? Change::derivatives : Change::none;
}

bool LayerAgreement::agree(const std::vector<Input>& inputs, const std::vector<at::Tensor>& parameters,
                           std::string_view own, std::optional<std::int64_t> broadcast) {
  if (!active()) return false;
  auto lock = id().rank_set.lock();
  auto tensors = structures_of(inputs, parameters);
  Local now{.autocast = autocast_of(device_of(inputs, parameters))};
  const bool by_compiler = caller_ == Caller::compiler;
  now.options = options_of(parameters, now.autocast, own, broadcast.has_value(), by_compiler);
  Derivatives any;
  Hash differentiation;
  const auto include = [&](Derivatives derivatives) {
    any |= derivatives;
    differentiation.add(flags_of(derivatives));
  };
  for (const auto& input : inputs) include(input.derivatives());
  for (const auto& parameter : parameters) include(derivatives_of(parameter));
  now.differentiation = differentiation.add(records_gradients() ? 1 : 0).value();

  auto change = std::max(agreement_.change_of(tensors), change_of(now));
  std::optional<std::int64_t> received;
  sizes_are_in_question_ = false;
  const auto* const outer = agreement_.memory().enter(id().rank_set);
  if (outer == nullptr || !agreement_.memory().remembers(outer->generation) || change != Change::none) {
    Agreement::take_deferred_error_to(tensors.front());
    const auto text = [&] { return text_of(parameters, now.autocast, own, broadcast.has_value(), by_compiler); };
    const auto compiled = caller_ == Caller::compiled_program ? kCompiled : 0U;
    const auto agreed = agreement_.agree(tensors,
                                         {.value = now.options,
                                          .flags = flags_of(any) | flags_of(change_of(now)) | compiled,
                                          .broadcast = broadcast.value_or(0)},
                                         text);
    change = agreed.change;
    received = agreed.broadcast;
    sizes_are_in_question_ = agreed.any_compiled && change == Change::structure;
    if (outer != nullptr) agreement_.memory().remember(outer->generation);
  }
  // With the structure check off the others did not hear of a change of derivatives: that is for the next vote.
  if (structure_check() || change == Change::structure) local_ = now;
  if (change != Change::none) generation_ = new_generation();
  if (broadcast) broadcast_ = received ? *received : receive_broadcast(*broadcast);
  begin_layer_call(this, agreement_.id(), generation_, std::move(lock));
  return change == Change::structure;
}

std::int64_t LayerAgreement::receive_broadcast(std::int64_t broadcast) const {
  const auto pass = Pass::forward;
  const auto operation = operation_of(id(), pass);
  const CountedWaits waits(id().counter(false));
  const comm::Ballot ballot{.call = id().call(pass), .broadcast = broadcast};
  return vote(id().rank_set, ballot, [&] { return id().text(pass); }).broadcast;
}

void LayerAgreement::forget() {
  agreement_.forget();
  generation_ = new_generation();
  change_generation(this, generation_);
}

GlobalStructure LayerAgreement::structure(std::size_t tensor, const std::vector<int>& ranks) const {
  return in_order_of(ranks, id().rank_set, agreement_.structure(tensor));
}

std::vector<Shape> LayerAgreement::blocks(std::size_t tensor, const std::string& partition, const Shape& shape,
                                          const std::vector<int>& ranks) const {
  const auto placement = place(id().rank_set, {partition, ranks, shape});
  const auto& structure = agreement_.structure(tensor);
  check_roles(id(), placement, structure);
  std::vector<Shape> sizes;
  for (const auto& along : check_blocks(id(), placement, structure)) sizes.push_back(along.sizes());
  return sizes;
}

}  // namespace distdl::agreement
