// The structure of tensors, all but their values, which the ranks of an operator know of each other.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <compare>
#include <cstdint>
#include <functional>
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
  auto operator<=>(const Structure&) const = default;

  void refuse(Error kind, std::string why) {
    error_kind = kind;
    error = std::move(why);
  }
};

/// The structures of all ranks, by rank of the set. Equal ones are kept once: the blocks of many ranks have few shapes.
class GlobalStructure {
 public:
  GlobalStructure() = default;
  GlobalStructure(std::size_t ranks, const std::function<Structure(std::size_t)>& structure_of);

  std::size_t size() const { return which_.size(); }
  const Structure& operator[](std::size_t rank) const { return distinct_[which_[rank]]; }
  const Structure& at(std::size_t rank) const { return distinct_[which_.at(rank)]; }
  bool operator==(const GlobalStructure&) const = default;
  /// Whether any rank's tensor is on a device.
  bool uses_devices() const;

 private:
  std::vector<Structure> distinct_;  // in the order in which ranks first have them
  std::vector<std::uint32_t> which_;
};

/// The contributions of all ranks to a call.
struct Gathered {
  std::vector<GlobalStructure> tensors;
  Derivatives derivatives;     // of any rank's tensors
  bool grad_disabled = false;  // whether any rank runs under no_grad
};

/// Collective. All ranks pass the same number of tensors.
Gathered gather(const RankSet& rank_set, std::vector<Structure> own, Derivatives derivatives = {});

}  // namespace distdl::agreement
