// A convolution kernel that slides along one dimension over blocks which are not copied: what a worker's own block
// gives, and what the halo around it adds to that.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "geometry/interval.hpp"

namespace distdl::geometry {

/// The terms of a convolution along one dimension that read some of its inputs. They are computed by a convolution of
/// these inputs alone, with `padding` zeros on both sides and the `taps` of the kernel: its outputs from `first` on are
/// the terms of `outputs`.
struct Share {
  Interval taps;
  Interval outputs;
  std::int64_t padding = 0;
  std::int64_t first = 0;
};

/// Place i along the dimension holds the inputs blocks[i] and computes outputs[i], which read the inputs reads[i],
/// beyond the first and the last input too where the padding is.
struct Sliding {
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
  std::vector<Interval> blocks;
  std::vector<Interval> outputs;
  std::vector<Interval> reads;

  struct Widths {
    std::int64_t left = 0;
    std::int64_t right = 0;
    bool operator==(const Widths&) const = default;
  };

  /// With how many zeros on both sides of place i's block the local layer has as many outputs as place i, in the same
  /// places; nothing if there is no such number.
  std::optional<std::int64_t> padding(std::size_t i) const;

  /// How many inputs place i wants of the places before and after it.
  Widths halo(std::size_t i) const;

  /// How many inputs at the start and at the end of place i's block the places before and after it want.
  Widths border(std::size_t i) const;

  bool has_halos() const;

  /// Whether the local layer computes all outputs, and all halos come from the blocks next to them.
  bool fits() const;

  /// The terms that `inputs`, counted from place i's block, add to place i's outputs. The inputs are at an end of what
  /// is read, so that some output reads them.
  Share share(std::size_t i, Interval inputs) const;
};

}  // namespace distdl::geometry
