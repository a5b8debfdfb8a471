// What the ranks of an operator know of each other's tensors, and how they come to know it.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <c10/util/FunctionRef.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/vote.hpp"
#include "comm/waiting.hpp"
#include "geometry/interval.hpp"
#include "operators/traffic.hpp"

namespace distdl::operators {

using geometry::Shape;

/// Becomes Python's TypeError; std::invalid_argument becomes ValueError, std::runtime_error RuntimeError.
class TypeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The ranks that take part in an operator. `ranks` are their numbers as the user counts them: those of the
/// communicator that the partitions come from, in ascending order, so that the same ranks always vote together.
struct Scope {
  comm::CommunicatorPtr communicator;
  std::vector<int> ranks;

  int user_rank(int rank) const { return ranks.at(static_cast<std::size_t>(rank)); }
  /// Held from the agreement until the data has moved, so that other threads' calls do not come in between.
  comm::Lock lock() const { return communicator ? communicator->lock() : comm::Lock(); }
};

/// One rank's tensor as the others see it. A rank that could not use what it was given says so in `error`.
struct Structure {
  enum class Error : std::int8_t { none, type, value, state };

  Shape sizes;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::DeviceType device = c10::DeviceType::CPU;
  Error error_kind = Error::none;
  std::string error;

  std::int64_t numel() const { return geometry::volume(sizes); }
  std::int64_t nbytes() const { return numel() * static_cast<std::int64_t>(c10::elementSize(dtype)); }
  bool operator==(const Structure&) const = default;
};

/// By rank of the scope.
using GlobalStructure = std::vector<Structure>;

/// Every operator of this process is checked before each call unless this is off: see Agreement::agree.
void set_structure_check(bool on);
bool structure_check();

/// Where an operator is called: its name, its ranks and its number among the operators on these ranks.
struct Site {
  std::string name;
  Scope scope;
  std::int64_t number;

  Site(std::string operation, Scope ranks);

  /// As statistics call it, and after distdl:: profilers.
  const std::string& name_of(bool adjoint) const { return adjoint ? adjoint_name_ : name; }
  Counter& counter(bool adjoint) const { return *(adjoint ? adjoint_counter_ : counter_); }

 private:
  std::string adjoint_name_;
  Counter *counter_, *adjoint_counter_;
};

/// The ways to call it, of which all ranks choose the same.
enum class Turn { forward, backward, trace };

/// What the watchdog sees for as long as this lives.
comm::Operation doing(const Site& site, Turn turn);

/// Makes sure that all ranks of the scope make the same call, which `description` names. Otherwise throws on all of
/// them, and tells what each one calls. Collective.
comm::Outcome vote(const Scope& scope, const comm::Ballot& ballot, c10::function_ref<std::string()> description);

/// What a tensor takes along into differentiation: whether it requires grad, and whether it has a forward-mode
/// derivative. Agreed on, it is what any rank's tensor has.
struct Derivatives {
  bool requires_grad = false;
  bool has_tangent = false;
};

/// Makes sure that all ranks of the site are in the same backward pass, and are asked alike for a gradient that can be
/// differentiated again. Otherwise throws on all of them, and so it does if some ranks have a problem with theirs that
/// others do not have. Collective.
struct BackwardAgreement {
  bool any;          // whether any rank has a gradient
  bool has_tangent;  // whether any rank's gradient has a forward-mode derivative
};
BackwardAgreement agree_on_backward(const Site& site, bool adjoint, bool has_gradient, Derivatives derivatives,
                                    const Structure& gradient);

/// Whether torch records what is called now: neither under no_grad nor in inference mode.
bool records_gradients();

/// What this rank did wrong where it could not be thrown on all ranks: the next agreement of an operator's ranks does.
void complain(std::string problem);
/// What was complained about first, which is then forgotten; empty if nothing was.
std::string take_complaint();

/// The global structure of an operator's input, agreed on by its ranks and kept until it changes on any of them.
class Agreement {
 public:
  explicit Agreement(std::shared_ptr<const Site> site) : site_(std::move(site)) {}

  /// Collective. Whether the structure changed, and what any rank's input takes along. An error on any rank is thrown
  /// on all, and so is a difference in `own`, which says what else has to be equal. While the structure check is off, a
  /// rank whose own part did not change asks nobody.
  struct Result {
    bool changed;
    Derivatives derivatives;
  };
  enum class Purpose { call, trace };  // of which all ranks must have the same
  Result agree(const Structure& mine, Derivatives derivatives, const std::string& own = "",
               Purpose purpose = Purpose::call);

  const GlobalStructure& structure() const { return structure_; }
  void forget() { structure_.clear(); }

 private:
  std::shared_ptr<const Site> site_;
  GlobalStructure structure_;  // empty until agreed
  Derivatives derivatives_;
};

/// Every rank's structure, in rank order. Collective.
GlobalStructure gather(const Scope& scope, const Structure& mine);

/// Throws the first rank's error, if any has one: the same on all ranks.
void throw_errors(const Site& site, const GlobalStructure& structure);

}  // namespace distdl::operators
