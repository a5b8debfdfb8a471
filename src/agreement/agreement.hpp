// The structure of the tensors of a call, as its ranks agreed on it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agreement/known_calls.hpp"
#include "agreement/layer_call.hpp"
#include "agreement/structure.hpp"
#include "agreement/voting.hpp"

namespace distdl::agreement {

class Agreement {
 public:
  explicit Agreement(std::shared_ptr<const OperatorId> id, std::vector<std::string> tensors = {"input"});
  /// An agreement on such tensors, which knows nothing yet.
  Agreement unused() const { return Agreement(id_, names_); }

  struct Result {
    Change change = Change::none;                          // on any rank
    Derivatives derivatives;                               // of any rank's tensors
    std::optional<std::int64_t> broadcast = std::nullopt;  // none if there was no vote
    EarlySend early = {};                                  // of the call's messages
  };

  /// A vote on a call with these tensors, in the order of their names. The ballot has the flags of the derivatives. An
  /// error on any rank is thrown on all, and so is a difference of values, with every rank's `own`. While the structure
  /// check is off, a rank where nothing changed asks no other. Collective.
  Result agree(std::span<const Structure> tensors, comm::Ballot ballot, LazyText own, Pass pass = Pass::forward,
               OwnFacts facts = {});

  /// agree() for an operator, which has one tensor. It does not vote within the call of a layer whose ranks agreed
  /// already: in a new generation the ranks tell each other their structures, in the same generation nothing is sent.
  /// Collective.
  Result agree_or_follow(Structure own, Derivatives derivatives, comm::SendEarly send);

  /// Makes the deferred error of this rank a problem of this tensor, unless the tensor has one, or no vote would follow
  /// in which the others hear of it.
  static void take_deferred_error_to(Structure& tensor);

  /// The innermost call of a layer around this one. Null if there is none, or if this is another place in it than that
  /// of the last call; then the next calls vote in any place.
  const LayerCall* enter_layer();
  /// Goes back, without a vote, to what the ranks agreed on in this generation of the layer around. Returns whether
  /// tensors or options changed by that; none if there is nothing to go back to, or if the call of this rank is unlike
  /// it.
  std::optional<bool> recall(const LayerCall& layer, std::span<const Structure> tensors, OwnFacts facts);
  /// Makes what was agreed on last what recall() goes back to.
  void remember(const LayerCall& layer) { calls_.remember(layer); }
  /// Makes the next calls vote in any layer. On all ranks or on none.
  void forget_layers() { calls_.forget_layers(); }

  /// Whether a call of this rank is like the last one.
  bool is_like_last(std::span<const Structure> tensors, OwnFacts facts) const {
    return calls_.is_like_last(tensors, facts);
  }
  /// Whether a call with this tensor, in this generation of the layer around, would follow what was agreed on last.
  bool would_follow(std::int64_t generation, const Structure& own) const {
    return is_like_last({&own, 1}, {}) && calls_.last().layer == generation;
  }

  /// The structure of one tensor, by rank; empty until it is agreed on.
  const GlobalStructure& structure(std::size_t tensor = 0) const;
  /// Of any rank's tensors, as last agreed on.
  Derivatives derivatives() const { return calls_.empty() ? Derivatives{} : calls_.last().derivatives; }
  /// What was agreed on last. Only after a call.
  const KnownCall& last() const { return calls_.last(); }
  /// Makes the next call a change of structure, on all ranks.
  void forget();

  const std::shared_ptr<const OperatorId>& id() const { return id_; }
  const std::string& name(std::size_t tensor) const { return names_.at(tensor); }
  std::size_t tensors() const { return names_.size(); }

 private:
  std::size_t my_rank() const { return static_cast<std::size_t>(id_->rank_set.communicator->rank()); }
  Result agree_unchecked(std::span<const Structure> tensors, const comm::Ballot& ballot) const;
  Result follow(const LayerCall& layer, const Structure& own, Derivatives derivatives);
  void require_unchanged(const Structure& own, Derivatives derivatives) const;
  void throw_errors_of(const Gathered& gathered) const;

  std::shared_ptr<const OperatorId> id_;
  std::vector<std::string> names_;
  KnownCalls calls_;
  LayerMemory memory_;
};

}  // namespace distdl::agreement
