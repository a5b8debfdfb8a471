#include "operators/structure.hpp"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>

#include "comm/error.hpp"
#include "comm/watchdog.hpp"
#include "geometry/text.hpp"

namespace distdl::operators {

namespace {

std::atomic<bool> check_structure{true};

std::mutex complaints_mutex;
std::deque<std::string> complaints;

constexpr std::size_t kMaxDims = 32;
constexpr std::size_t kMaxText = 400;

/// A Structure as it travels.
struct Record {
  std::array<std::int64_t, kMaxDims> sizes;
  std::int32_t dims;
  std::int8_t dtype;
  std::int8_t device;
  std::int8_t error_kind;
  std::array<char, kMaxText> error;
};

Record pack(Structure structure) {
  if (structure.sizes.size() > kMaxDims) {
    structure.error_kind = Structure::Error::value;
    structure.error = "has " + std::to_string(structure.sizes.size()) + " dimensions; at most " +
                      std::to_string(kMaxDims) + " are supported";
    structure.sizes.clear();
  }
  Record record{};
  std::copy(structure.sizes.begin(), structure.sizes.end(), record.sizes.begin());
  record.dims = static_cast<std::int32_t>(structure.sizes.size());
  record.dtype = static_cast<std::int8_t>(structure.dtype);
  record.device = static_cast<std::int8_t>(structure.device);
  record.error_kind = static_cast<std::int8_t>(structure.error_kind);
  structure.error.copy(record.error.data(), kMaxText - 1);
  return record;
}

Structure unpack(const Record& record) {
  Structure structure;
  structure.sizes.assign(record.sizes.begin(), record.sizes.begin() + record.dims);
  structure.dtype = static_cast<c10::ScalarType>(record.dtype);
  structure.device = static_cast<c10::DeviceType>(record.device);
  structure.error_kind = static_cast<Structure::Error>(record.error_kind);
  structure.error = record.error.data();
  return structure;
}

template <class Error = std::runtime_error>
[[noreturn]] void throw_gathered(const Scope& scope, const std::string& rule, const std::string& mine) {
  throw Error(rule + "; " + geometry::by_rank(scope.ranks, comm::gather_texts(*scope.communicator, mine)));
}

[[noreturn]] void throw_error(const Site& site, std::size_t rank, const Structure& structure) {
  const auto message =
      site.name + ": the input of rank " + std::to_string(site.scope.ranks[rank]) + " " + structure.error;
  switch (structure.error_kind) {
    case Structure::Error::type:
      throw TypeError(message);
    case Structure::Error::state:
      throw std::runtime_error(message);
    default:
      throw std::invalid_argument(message);
  }
}

constexpr std::array<const char*, 3> kTurns{"", ", backward", ", compiled"};

/// What distinguishes one call of an operator from another one, for who looks for a mistake.
std::string fingerprint(const Scope& scope, const Structure& tensor) {
  if (!comm::debugging()) return {};
  const auto dtype = tensor.error_kind == Structure::Error::none ? c10::toString(tensor.dtype) : "an error";
  return ", call " + std::to_string(scope.communicator->votes()) + " on these ranks, with " + dtype + " " +
         geometry::text(tensor.sizes);
}

comm::Outcome vote_on_call(const Site& site, Turn turn, bool changed, Derivatives derivatives, const std::string& own,
                           const Structure& tensor) {
  comm::Ballot ballot;
  ballot.value = comm::value_of(own);
  ballot.call = 3 * site.number + static_cast<std::int64_t>(turn);
  ballot.changed = changed;
  ballot.requires_grad = derivatives.requires_grad;
  ballot.has_tangent = derivatives.has_tangent;
  ballot.grad_disabled = !records_gradients();
  const CountedWaits waits(site.counter(turn == Turn::backward));
  const auto outcome = vote(site.scope, ballot, [&] {
    return site.name + " number " + std::to_string(site.number) + kTurns.at(static_cast<std::size_t>(turn)) +
           fingerprint(site.scope, tensor);
  });
  if (outcome.any_requires_grad && outcome.any_grad_disabled) {
    throw_gathered(site.scope,
                   site.name +
                       ": gradients are asked for on some ranks and disabled on others; enter torch.no_grad "
                       "(or pass create_graph) on all ranks or on none",
                   ballot.grad_disabled ? "disabled" : "enabled");
  }
  return outcome;
}

void require_same(const Site& site, const comm::Outcome& outcome, const std::string& own) {
  if (!outcome.same_value) throw_gathered<std::invalid_argument>(site.scope, site.name + ": the ranks differ", own);
}

}  // namespace

void set_structure_check(bool on) { check_structure = on; }
bool structure_check() { return check_structure || comm::debugging(); }

Site::Site(std::string operation, Scope ranks)
    : name(std::move(operation)),
      scope(std::move(ranks)),
      number(0),
      adjoint_name_(name + " adjoint"),
      counter_(&operators::counter(name)),
      adjoint_counter_(&operators::counter(adjoint_name_)) {
  if (scope.communicator) number = scope.communicator->next_operator();
}

comm::Operation doing(const Site& site, Turn turn) {
  return comm::Operation(site.name, site.number, kTurns.at(static_cast<std::size_t>(turn)),
                         site.scope.communicator.get());
}

comm::Outcome vote(const Scope& scope, const comm::Ballot& ballot, c10::function_ref<std::string()> description) {
  const auto outcome = comm::vote(*scope.communicator, ballot);
  if (!outcome.same_call) {
    const auto line = comm::at_line(comm::this_thread().id);
    throw_gathered(scope, "the ranks do not make the same call", description() + line);
  }
  return outcome;
}

void complain(std::string problem) {
  const std::lock_guard lock(complaints_mutex);
  complaints.push_back(std::move(problem));
}

std::string take_complaint() {
  const std::lock_guard lock(complaints_mutex);
  if (complaints.empty()) return {};
  auto problem = std::move(complaints.front());
  complaints.pop_front();
  return problem;
}

bool records_gradients() { return c10::GradMode::is_enabled() && !c10::InferenceMode::is_enabled(); }

BackwardAgreement agree_on_backward(const Site& site, bool adjoint, bool has_gradient, Derivatives derivatives,
                                    const Structure& gradient) {
  if (!site.scope.communicator) return {has_gradient, derivatives.has_tangent};
  if (!structure_check()) return {true, derivatives.has_tangent};
  const auto turn = adjoint ? Turn::backward : Turn::forward;
  const auto operation = doing(site, turn);
  const auto outcome = vote_on_call(site, turn, has_gradient, derivatives, gradient.error, gradient);
  require_same(site, outcome, gradient.error);
  return {outcome.any_changed, outcome.any_has_tangent};
}

Agreement::Result Agreement::agree(const Structure& mine, Derivatives derivatives, const std::string& own,
                                   Purpose purpose) {
  const auto rank = static_cast<std::size_t>(site_->scope.communicator->rank());
  const bool changed = structure_.empty() || mine.error_kind != Structure::Error::none || structure_[rank] != mine;
  if (!structure_check() && !structure_.empty()) {
    if (mine.error_kind != Structure::Error::none) throw_error(*site_, rank, mine);
    if (changed) {
      throw std::runtime_error(site_->name + ": the input of rank " + std::to_string(site_->scope.ranks[rank]) +
                               " changed while the structure check is off; turn it on for this call");
    }
    return {false, derivatives_};
  }
  const auto turn = purpose == Purpose::trace ? Turn::trace : Turn::forward;
  const auto operation = doing(*site_, turn);
  const auto outcome = vote_on_call(*site_, turn, changed, derivatives, own, mine);
  derivatives_ = {outcome.any_requires_grad, outcome.any_has_tangent};
  GlobalStructure gathered;
  if (outcome.any_changed) {
    structure_.clear();  // so that after an error the next call agrees anew
    gathered = gather(site_->scope, mine);
    throw_errors(*site_, gathered);  // first: a rank that met an error may have nothing of its own to compare
  }
  require_same(*site_, outcome, own);
  if (outcome.any_changed) structure_ = std::move(gathered);
  return {outcome.any_changed, derivatives_};
}

GlobalStructure gather(const Scope& scope, const Structure& mine) {
  const auto record = pack(mine);
  std::vector<Record> records(scope.ranks.size());
  const comm::Waiting waiting;
  comm::check(MPI_Allgather(&record, sizeof(Record), MPI_BYTE, records.data(), sizeof(Record), MPI_BYTE,
                            scope.communicator->handle()),
              "MPI_Allgather");
  GlobalStructure structure;
  std::transform(records.begin(), records.end(), std::back_inserter(structure), unpack);
  return structure;
}

void throw_errors(const Site& site, const GlobalStructure& structure) {
  for (std::size_t r = 0; r < structure.size(); ++r) {
    if (structure[r].error_kind != Structure::Error::none) throw_error(site, r, structure[r]);
  }
}

}  // namespace distdl::operators
