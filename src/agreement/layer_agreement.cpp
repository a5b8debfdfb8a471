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

at::DeviceType device_of(const LayerFacts& facts) {
  for (const auto* const inputs : {&facts.tensors, &facts.parameters}) {
    const auto first = std::ranges::find_if(*inputs, &Input::is_usable);
    if (first != inputs->end()) return first->tensor.device().type();
  }
  return at::kCPU;
}

std::optional<c10::ScalarType> autocast_of(at::DeviceType device) {
  if (!at::autocast::is_autocast_available(device) || !at::autocast::is_autocast_enabled(device)) return std::nullopt;
  return at::autocast::get_autocast_dtype(device);
}

/// The dtypes of floating-point buffers, which differ if only some ranks converted the layer.
std::vector<c10::ScalarType> buffer_dtypes(const LayerFacts& facts) {
  std::vector<c10::ScalarType> dtypes;
  for (const auto& buffer : facts.buffers) {
    if (buffer.is_usable() && at::isFloatingType(buffer.tensor.scalar_type())) {
      dtypes.push_back(buffer.tensor.scalar_type());
    }
  }
  return dtypes;
}

/// The derivatives of all tensors and parameters, together and as a hash of each.
struct Differentiation {
  Derivatives any;
  std::uint64_t hash;
};

Differentiation differentiation_of(const LayerFacts& facts) {
  Derivatives any;
  Hash hash;
  for (const auto* const inputs : {&facts.tensors, &facts.parameters}) {
    for (const auto& input : *inputs) {
      const auto derivatives = input.derivatives();
      any |= derivatives;
      hash.add(flags_of(derivatives));
    }
  }
  return {any, hash.add(records_gradients() ? 1 : 0).value()};
}

/// What has to be equal on all ranks, beside the structure of the tensors.
struct Compared {
  const LayerFacts& facts;
  std::optional<c10::ScalarType> autocast;
  bool by_compiler;
  const std::string& copy;  // tells copies of a layer from each other; see name_copy

  /// A number that differs if anything differs; never negative.
  std::int64_t hash() const;
  /// A description for the message in which all ranks say what they have.
  std::string text() const;
};

std::int64_t Compared::hash() const {
  Hash hash;
  hash.add(facts.parameters.size()).add(autocast ? 1 + static_cast<std::uint64_t>(*autocast) : 0);
  for (const auto& parameter : facts.parameters) {
    hash.add(parameter.is_usable() ? static_cast<std::uint64_t>(parameter.tensor.scalar_type()) : ~0U);
  }
  hash.add(facts.broadcast ? 1 : 0).add(by_compiler ? 1 : 0).add(facts.own_buffers);
  for (const auto dtype : buffer_dtypes(facts)) hash.add(static_cast<std::uint64_t>(dtype));
  hash.add(std::hash<std::string>{}(copy)).add(std::hash<std::string>{}(facts.own));
  return static_cast<std::int64_t>(hash.value() >> 1);
}

std::string torch_name(c10::ScalarType dtype) { return "torch." + std::string(c10::getDtypeNames(dtype).first); }

/// "[torch.int64, 3 of torch.float32]": equal names that follow each other are counted.
std::string counted(const std::vector<std::string>& names) {
  std::vector<std::string> texts;
  for (auto begin = names.begin(); begin != names.end();) {
    const auto end = std::find_if(begin, names.end(), [&](const auto& name) { return name != *begin; });
    texts.push_back((end - begin > 1 ? std::to_string(end - begin) + " of " : "") + *begin);
    begin = end;
  }
  return "[" + base::joined(texts) + "]";
}

std::string Compared::text() const {
  std::vector<std::string> parameters, buffers;
  for (const auto& parameter : facts.parameters) {
    parameters.push_back(parameter.is_usable() ? torch_name(parameter.tensor.scalar_type()) : "none");
  }
  for (const auto dtype : buffer_dtypes(facts)) buffers.push_back(torch_name(dtype));
  std::string text = "parameters of " + counted(parameters) + ", autocast ";
  text += autocast ? torch_name(*autocast) : "off";
  if (facts.broadcast) text += ", with random numbers";
  if (by_compiler) text += ", traced by a compiler";
  if (facts.own_buffers > 0 || !buffers.empty()) {
    text += ", " + std::to_string(facts.own_buffers) + " own buffers, of " + counted(buffers);
  }
  if (!copy.empty()) text += ", " + copy;
  return facts.own.empty() ? text : text + (copy.empty() ? ", " : " ") + facts.own;
}

}  // namespace

LayerAgreement::LayerAgreement(const std::string& layer, MPI_Comm root, const std::vector<int>& ranks,
                               std::vector<std::string> tensors, const std::vector<std::string>& optional)
    : agreement_(std::make_shared<OperatorId>(layer, rank_set_of(root, ranks)), std::move(tensors)) {
  if (agreement_.tensors() == 0) throw std::invalid_argument(layer + ": an agreement is on at least one tensor");
  for (std::size_t i = 0; i < agreement_.tensors(); ++i) {
    optional_.push_back(std::ranges::find(optional, agreement_.name(i)) != optional.end());
  }
}

LayerAgreement::LayerAgreement(const LayerAgreement& other)
    : expected_(other.expected_), optional_(other.optional_), agreement_(other.agreement_.unused()) {}

void LayerAgreement::expect(std::string name, Shape shape, bool may_be_empty) {
  expected_.push_back({std::move(name), std::move(shape), may_be_empty});
}

std::string LayerAgreement::problem_of(const std::vector<Input>& parameters) const {
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    const auto& [name, shape, may_be_empty] = expected_[i];
    if (i >= parameters.size() || !parameters[i].is_usable()) return "meets no " + name;
    const auto& tensor = parameters[i].tensor;
    if (tensor.sizes() == at::IntArrayRef(shape) || (may_be_empty && tensor.numel() == 0)) continue;
    return "meets a " + name + " of shape " + base::text(tensor.sizes().vec()) + "; it must be " + base::text(shape);
  }
  return {};
}

std::vector<Structure> LayerAgreement::structures_of(const LayerFacts& facts) const {
  std::vector<Structure> tensors;
  tensors.reserve(agreement_.tensors());
  for (std::size_t i = 0; i < agreement_.tensors(); ++i) {
    tensors.push_back(i < facts.tensors.size() ? facts.tensors[i].structure() : Input{}.structure());
  }
  auto& first = tensors.front();
  if (first.error_kind != Structure::Error::none) return tensors;
  auto problem = problem_of(facts.parameters);
  if (problem.empty() && facts.tensors.size() > tensors.size()) {
    problem = "is one of " + std::to_string(facts.tensors.size()) + "; at most " + std::to_string(tensors.size()) +
              " are expected";
  }
  if (!problem.empty()) first.refuse(Structure::Error::value, std::move(problem));
  return tensors;
}

comm::SendEarly LayerAgreement::sender_of(const std::vector<OperatorWithin>& beside) const {
  std::vector<comm::SendEarly> senders;
  for (const auto& each : beside) {
    senders.push_back(each.sender(agreement_.last().generation));
    if (!senders.back()) return {};
  }
  return [senders = std::move(senders)](int tag, std::vector<int>& receivers) {
    for (const auto& send : senders) {
      send(tag, receivers);
      tag = comm::second_tag(tag);
    }
  };
}

bool LayerAgreement::agree(LayerFacts facts, std::vector<OperatorWithin> beside) {
  if (!active()) return false;
  std::erase_if(beside, [&](const auto& each) { return each.id->rank_set.communicator != id().rank_set.communicator; });
  SentBeside sent;
  if (beside.size() > sent.ids.size()) throw std::logic_error("messages of two operators travel beside a vote");
  auto lock = id().rank_set.lock();
  facts = facts_or_errors(std::move(facts), optional_);
  auto tensors = structures_of(facts);
  const auto differentiation = differentiation_of(facts);
  const Compared compared{facts, autocast_of(device_of(facts)), caller_ == Caller::compiler, copy_};
  const bool by_compiled = caller_ == Caller::compiled_program;
  const OwnFacts now{.options = compared.hash(),
                     .differentiation = Hash().add(differentiation.hash).add(by_compiled ? 1 : 0).value()};
  meets_inference_tensors_ = std::ranges::any_of(
      facts.tensors, [](const Input& input) { return input.is_usable() && input.tensor.is_inference(); });

  std::optional<std::int64_t> received;
  // Within the call of an outer layer all ranks know, without a vote, what they agreed on in such a call.
  const auto* const outer = agreement_.enter_layer();
  auto changed = outer == nullptr ? std::nullopt : agreement_.recall(*outer, tensors, now);
  if (!changed) {
    Agreement::take_deferred_error_to(tensors.front());
    const auto text = [&] { return compared.text(); };
    comm::SendEarly send;
    if (!beside.empty() && agreement_.is_like_last(tensors, now)) send = sender_of(beside);
    const auto agreed = agreement_.agree(tensors,
                                         {.value = now.options,
                                          .flags = flags_of(differentiation.any) | (by_compiled ? kCompiled : 0U),
                                          .broadcast = facts.broadcast.value_or(0),
                                          .send_early = std::move(send)},
                                         text, Pass::forward, now);
    if (agreed.early.sent) {
      sent.tag = agreed.early.tag;
      std::ranges::transform(beside, sent.ids.begin(), &OperatorWithin::id);
    }
    changed = agreed.change == Change::structure;
    received = agreed.broadcast;
    if (outer != nullptr) agreement_.remember(*outer);
  }
  autocast_ = compared.autocast;
  const auto& last = agreement_.last();
  sizes_are_in_question_ = last.compiled && structure_check() && compiled_for_ && compiled_for_ != last.structures;
  if (last.compiled || caller_ == Caller::compiler) compiled_for_ = last.structures;
  if (facts.broadcast) broadcast_ = received ? *received : receive_broadcast(*facts.broadcast);
  begin_layer_call(this, agreement_.id(), agreement_.last().generation, std::move(lock), sent);
  return *changed;
}

std::int64_t LayerAgreement::receive_broadcast(std::int64_t contribution) const {
  const auto pass = Pass::forward;
  const auto operation = operation_of(id(), pass);
  const CountedWaits waits(id().counter(false));
  const comm::Ballot ballot{.call = id().call(pass), .broadcast = contribution};
  return vote(id().rank_set, ballot, [&] { return id().text(pass); }).broadcast;
}

void LayerAgreement::forget() {
  agreement_.forget();
  change_generation(this, new_generation());
}

std::vector<Structure> LayerAgreement::structure(std::size_t tensor, const std::vector<int>& ranks) const {
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
