// What the ranks agreed on in their last kinds of calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "agreement/derivatives.hpp"
#include "agreement/layer_call.hpp"
#include "agreement/structure.hpp"
#include "agreement/voting.hpp"

namespace distdl::agreement {

/// What a layer compares with earlier calls on this rank, beside the structure of its tensors.
struct OwnFacts {
  std::int64_t options = 0;           // hash of what has to be equal on all ranks
  std::uint64_t differentiation = 0;  // hash of the derivatives of each tensor and parameter, and who calls

  bool operator==(const OwnFacts&) const = default;
};

using Structures = std::vector<GlobalStructure>;  // by tensor

struct KnownCall {
  std::shared_ptr<const Structures> structures;  // the same object for equal ones
  Derivatives derivatives;                       // of any rank's tensors
  bool compiled;                                 // on any rank, by a compiled program
  OwnFacts facts;
  std::int64_t generation;  // see new_generation()
  std::int64_t layer = 0;   // the generation of the layer around; none
};

/// All ranks know the same calls, in the same order. So a call like one of them, such as the first whole batch after a
/// short one, takes a vote and no other message: each rank says which of its calls this one is unlike.
class KnownCalls {
 public:
  explicit KnownCalls(std::size_t rank) : rank_(rank) {}

  /// Whether the ranks agreed on the last call. Otherwise the next one is a change, and like no known call.
  bool agreed() const { return agreed_; }
  void forget() { agreed_ = false; }
  const KnownCall& last() const { return calls_.front(); }
  const KnownCall& at(std::size_t place) const { return calls_.at(place); }
  bool empty() const { return calls_.empty(); }

  /// The flags of a ballot for a call of this rank: how much it differs from the last one, and which it is unlike.
  std::uint32_t flags_for(std::span<const Structure> tensors, OwnFacts facts) const;
  /// The place of a call that is like the one of all ranks, by the flags of a vote.
  std::optional<std::size_t> place_of(std::uint32_t flags) const;
  /// The place of the call in this generation of the layer around.
  std::optional<std::size_t> place_of(const LayerCall& layer) const;
  /// Whether a call of this rank is like the last one, or the one in a place.
  bool is_like_last(std::span<const Structure> tensors, OwnFacts facts) const;
  bool is_like(std::size_t place, std::span<const Structure> tensors, OwnFacts facts) const;

  /// Makes a known call the last one. Returns whether tensors or options are other ones than in the last one so far.
  bool go_back_to(std::size_t place);
  /// Adds the last call; returns the same.
  bool add(KnownCall call);
  /// These structures, in the object of a known call if one has them.
  std::shared_ptr<const Structures> shared(Structures structures) const;

  /// Makes the last call that of this generation of the layer around.
  void remember(const LayerCall& layer);
  void forget_layers();

 private:
  bool has_tensors(const KnownCall& call, std::span<const Structure> tensors) const;
  bool is_change(const KnownCall& call) const;

  std::size_t rank_;
  std::vector<KnownCall> calls_;  // the last first; kKnownCalls at most
  bool agreed_ = false;
};

}  // namespace distdl::agreement
