// The agreement of a layer's ranks before each of its calls, in a single vote.
#pragma once

#include <mpi.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agreement/agreement.hpp"
#include "agreement/layer_facts.hpp"

namespace distdl::agreement {

/// An operator that a layer's call applies, with what gives its messages in a generation of the layer's calls; nothing
/// if they cannot travel beside the layer's vote.
struct OperatorWithin {
  const OperatorId* id;
  std::function<comm::SendEarly(std::int64_t generation)> sender;
};

class LayerAgreement {
 public:
  /// `optional` has the names among `tensors` that a call may leave out.
  LayerAgreement(const std::string& layer, MPI_Comm root, const std::vector<int>& ranks,
                 std::vector<std::string> tensors, const std::vector<std::string>& optional);
  /// The agreement of a copied layer, which has calls of its own.
  LayerAgreement(const LayerAgreement& other);
  LayerAgreement& operator=(const LayerAgreement&) = delete;
  /// Ends a call that was not left: the layer may be gone before its call is.
  ~LayerAgreement() { leave(); }

  /// Whether this rank is among the layer's ranks. On other ranks, agree() and leave() do nothing.
  bool active() const { return id().rank_set.communicator != nullptr; }
  /// Whether messages between the layer's ranks may travel between hosts.
  bool spans_hosts() const { return active() && id().rank_set.communicator->spans_hosts(); }

  /// The shape that the next parameter must have on this rank; the parameters of a call begin with those expected here,
  /// in the same order.
  void expect(std::string name, Shape shape, bool may_be_empty);

  /// Tells the calls of a copy of a layer from those of other copies.
  void name_copy(std::string copy) { copy_ = std::move(copy); }

  /// Begins a call. Until leave() the operators that this thread calls on these ranks, or on some of them, do not vote,
  /// and calls of other threads on these ranks wait. Throws on all ranks what is wrong on one of them; then no call has
  /// begun. Returns whether the structure changed on any rank. Collective.
  ///
  /// Within the call of an outer layer it does not vote, if nothing changed: neither here nor in what the outer layer
  /// agreed on, which has to include the parameters of the inner layer.
  ///
  /// The messages of up to two operators on the layer's ranks travel beside the vote. The call has to apply them, once.
  bool agree(LayerFacts facts, std::vector<OperatorWithin> beside = {});

  /// The number of the last agree() that had one; the same on all ranks.
  std::int64_t broadcast() const { return broadcast_; }

  /// Who makes the next calls of agree() on this rank.
  enum class Caller : std::int8_t { program, compiled_program, compiler };
  /// Calls of programs and of compiled programs meet. A call of a compiler, which asks for the structure of a result,
  /// is refused on all ranks where others make another call.
  void set_caller(Caller caller) { caller_ = caller; }
  /// Whether any rank calls from a compiled program, as of the last agree(), and the structure is not that of the last
  /// such call: the program relies on the sizes of its results. The same on all ranks.
  bool sizes_are_in_question() const { return sizes_are_in_question_; }

  /// Ends the call. Does nothing if this thread is in no call of this agreement.
  void leave() { end_layer_call(this); }

  /// Makes the next call agree anew; on all ranks or on none.
  void forget();
  /// Makes the next agree() vote within the call of an outer layer, too: ranks may have more to tell each other than
  /// what the outer layer agreed on, such as what is wrong with values. On all ranks or on none.
  void vote_within() { agreement_.forget_layers(); }

  /// The derivatives of any rank's tensors and parameters, as of the last vote.
  Derivatives derivatives() const { return agreement_.derivatives(); }

  /// Whether gradients are recorded now, and a tensor or parameter of any rank requires them, as of the last vote.
  bool is_differentiated() const { return derivatives().requires_grad && c10::GradMode::is_enabled(); }
  /// Whether a tensor of this rank was made in inference mode, as of the last agree().
  bool meets_inference_tensors() const { return meets_inference_tensors_; }

  /// The dtype of autocast, as of the last agree(); none if it is off.
  std::optional<c10::ScalarType> autocast() const { return autocast_; }

  /// One tensor's structure on each of these ranks. It is not `present` on ranks that were called without the tensor.
  std::vector<Structure> structure(std::size_t tensor, const std::vector<int>& ranks) const;

  /// The sizes of one tensor's blocks by dimension, on a partition of this name, shape and ranks. Throws the same on
  /// all ranks unless they are blocks of one tensor.
  std::vector<Shape> blocks(std::size_t tensor, const std::string& partition, const Shape& shape,
                            const std::vector<int>& ranks) const;

 private:
  struct Expected {
    std::string name;
    Shape shape;
    bool may_be_empty;
  };

  const OperatorId& id() const { return *agreement_.id(); }
  std::vector<Structure> structures_of(const LayerFacts& facts) const;
  comm::SendEarly sender_of(const std::vector<OperatorWithin>& beside) const;
  std::string problem_of(const std::vector<Input>& parameters) const;
  /// The broadcast number, by a vote of its own, in a call without another vote. Collective.
  std::int64_t receive_broadcast(std::int64_t contribution) const;

  std::vector<Expected> expected_;
  std::vector<bool> optional_;  // by tensor
  Agreement agreement_;
  std::optional<c10::ScalarType> autocast_;
  std::shared_ptr<const Structures> compiled_for_;  // the structures of the last call by a compiler or compiled program
  std::int64_t broadcast_ = 0;
  Caller caller_ = Caller::program;
  std::string copy_;  // empty for a layer that is no copy
  bool meets_inference_tensors_ = false;
  bool sizes_are_in_question_ = false;
};

}  // namespace distdl::agreement
