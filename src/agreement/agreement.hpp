// The structure of the tensors of a call, agreed on by its ranks and kept until it changes on any of them.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agreement/layer_call.hpp"
#include "agreement/structure.hpp"
#include "agreement/voting.hpp"

namespace distdl::agreement {

class Agreement {
 public:
  explicit Agreement(std::shared_ptr<const OperatorId> id, std::vector<std::string> tensors = {"input"})
      : id_(std::move(id)), names_(std::move(tensors)) {}

  struct Result {
    Change change = Change::none;                          // on any rank
    Derivatives derivatives;                               // of any rank's tensors
    std::optional<std::int64_t> broadcast = std::nullopt;  // none if there was no vote
    bool any_compiled = false;
    EarlySend early = {};  // of the call's messages
  };

  /// A vote on a call with these tensors, in the order of their names. The ballot has the flags of the derivatives and
  /// of what else the caller compares with its last call. An error on any rank is thrown on all, and so is a difference
  /// of values, with every rank's `own`. While the structure check is off, a rank where nothing changed asks no other.
  /// Collective.
  Result agree(std::span<const Structure> tensors, comm::Ballot ballot, LazyText own, Pass pass = Pass::forward);

  /// agree() for an operator, which has one tensor. It does not vote within the call of a layer whose ranks agreed
  /// already: in a new generation the ranks tell each other their structures, in the same generation nothing is sent.
  /// Collective.
  Result agree_or_follow(Structure own, Derivatives derivatives, comm::SendEarly send);

  /// Makes the deferred error of this rank a problem of this tensor, unless the tensor has one, or no vote would follow
  /// in which the others hear of it.
  static void take_deferred_error_to(Structure& tensor);

  /// How much changed on this rank.
  Change change_of(std::span<const Structure> tensors) const;

  /// The structure of one tensor, by rank; empty until it is agreed on.
  const GlobalStructure& structure(std::size_t tensor = 0) const;
  Derivatives derivatives() const { return derivatives_; }  // of any rank's tensors, as last agreed on
  bool agreed() const { return !structures_.empty(); }
  void forget();

  const std::shared_ptr<const OperatorId>& id() const { return id_; }
  const std::string& name(std::size_t tensor) const { return names_.at(tensor); }
  std::size_t tensors() const { return names_.size(); }
  LayerMemory& memory() { return memory_; }

 private:
  std::size_t my_rank() const { return static_cast<std::size_t>(id_->rank_set.communicator->rank()); }
  Result agree_unchecked(std::span<const Structure> tensors, const comm::Ballot& ballot) const;
  Result follow(const LayerCall& layer, const Structure& own, Derivatives derivatives);
  void require_unchanged(const Structure& own, Derivatives derivatives) const;
  void throw_errors_of(const Gathered& gathered) const;

  std::shared_ptr<const OperatorId> id_;
  std::vector<std::string> names_;
  std::vector<GlobalStructure> structures_;  // by tensor; empty until agreed on
  Derivatives derivatives_;
  LayerMemory memory_;
};

}  // namespace distdl::agreement
