// The structure of the tensors of a call, agreed on by its ranks and kept until it changes on any of them.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "operators/layer_call.hpp"
#include "operators/structure.hpp"
#include "operators/voting.hpp"

namespace distdl::operators {

class Agreement {
 public:
  explicit Agreement(std::shared_ptr<const OperatorId> id, std::vector<std::string> tensors = {"input"})
      : id_(std::move(id)), names_(std::move(tensors)) {}

  /// What this rank brings: its tensors in the order of their names, and what else the caller compares.
  struct Brought {
    std::span<const Structure> tensors;
    Derivatives derivatives;                   // of any of the tensors
    comm::Change change = comm::Change::none;  // at least; of what the caller compares with its last call
    std::int64_t value = 0;                    // of what has to be equal on all ranks
    std::int64_t told = 0;                     // a number that one rank tells the others, which bring 0
    bool compiled = false;                     // whether the call is that of a compiled program
    comm::SendAhead send = {};  // what this rank sends if nothing changed; empty if it waits for the vote
  };
  struct Result {
    comm::Change change;                              // on any rank
    Derivatives derivatives;                          // of any rank's tensors
    std::optional<std::int64_t> told = std::nullopt;  // none where nobody was asked
    bool any_compiled = false;
    Ahead ahead = {};  // of the call's messages
  };

  /// A vote. An error on any rank is thrown on all, and so is a difference of values, with every rank's `own`. While
  /// the structure check is off, a rank where nothing changed asks nobody. Collective.
  Result agree(const Brought& mine, LazyText own, Pass pass = Pass::forward);

  /// agree() for the one tensor of an operator. It does not vote within the call of a layer whose ranks agreed already:
  /// in a new epoch the ranks tell each other their structures, in the same epoch nothing is sent. Collective.
  Result agree_or_follow(Structure mine, Derivatives derivatives, comm::SendAhead send);

  /// Makes what was complained about on this rank a problem of this tensor, unless it has one, or no vote would follow
  /// in which the others hear of it.
  static void take_complaint_to(Structure& tensor);

  /// How much changed on this rank.
  comm::Change change_of(std::span<const Structure> mine) const;

  /// Of one tensor, by rank; empty until it is agreed on.
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
  Result agree_unchecked(const Brought& mine) const;
  Result follow(const LayerCall& layer, const Structure& mine, Derivatives derivatives);
  void require_unchanged(const Structure& mine, Derivatives derivatives) const;
  void throw_errors_of(const Gathered& gathered) const;

  std::shared_ptr<const OperatorId> id_;
  std::vector<std::string> names_;
  std::vector<GlobalStructure> structures_;  // by tensor; empty until agreed on
  Derivatives derivatives_;
  LayerMemory memory_;
};

}  // namespace distdl::operators
