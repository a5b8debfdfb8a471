// The structure of tensors, all but their values, which the ranks of an operator know of each other.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <span>
#include <string>
#include <vector>

#include "agreement/derivatives.hpp"
#include "agreement/rank_set.hpp"
#include "geometry/interval.hpp"

namespace distdl::agreement {

using geometry::Shape;

/// One rank's tensor as the others see it. A rank that cannot use its tensor says so in `error`.
struct Structure {
  enum class Error : std::int8_t { none, type, value, state };

  Shape sizes;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::DeviceType device = c10::DeviceType::CPU;
  bool present = true;  // false: this rank was called without this tensor
  Error error_kind = Error::none;
  std::string error;

  std::int64_t numel() const { return geometry::volume(sizes); }
  std::int64_t nbytes() const { return numel() * static_cast<std::int64_t>(c10::elementSize(dtype)); }
  bool operator==(const Structure&) const = default;

  void refuse(Error kind, std::string why) {
    error_kind = kind;
    error = std::move(why);
  }
};

/// The structures of all ranks, by rank of the set.
using GlobalStructure = std::vector<Structure>;

/// The contributions of all ranks to a call.
struct Gathered {
  std::vector<GlobalStructure> tensors;
  Derivatives derivatives;     // of any rank's tensors
  bool grad_disabled = false;  // whether any rank runs under no_grad
};

/// Collective. All ranks pass the same number of tensors.
Gathered gather(const RankSet& rank_set, std::span<const Structure> own, Derivatives derivatives = {});

}  // namespace distdl::agreement
