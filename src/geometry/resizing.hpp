// Operations along one dimension that have another number of outputs than of inputs, and what their outputs read:
// adaptive pooling, interpolation and sliding windows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "geometry/blocks.hpp"
#include "geometry/interval.hpp"
#include "geometry/window.hpp"

namespace distdl::geometry {

/// How many outputs there are for n inputs: `size` of them, or else n times `factor`, without the fraction.
struct OutputCount {
  std::optional<std::int64_t> size = std::nullopt;
  double factor = 1.0;

  /// Negative where there is no such number.
  std::int64_t of(std::int64_t n) const;
};

/// Output i of m reads the inputs from floor(i n / m) to ceil((i + 1) n / m), as torch.nn's adaptive pooling does.
struct AdaptiveWindows {
  OutputCount count;

  static constexpr std::int64_t fewest = 0;  // outputs
  std::int64_t outputs(std::int64_t n) const { return count.of(n); }

  /// The first output whose window has its middle at input `cut` or behind it, before the window's ends are rounded.
  std::int64_t aligned(std::int64_t n, std::int64_t cut) const;

  /// All inputs that these outputs read: for one output, its window; for an empty interval, an empty interval.
  Interval reads(std::int64_t n, Interval outputs) const;
};

/// Output o of torch.nn.functional.interpolate reads one, two or four inputs around its place among them. The place is
/// computed in floating point, and near the border between two inputs the rounding decides which inputs are read. So
/// the place is computed here in the same steps as there, in the same precision.
struct Interpolation {
  enum class Mode { nearest, nearest_exact, linear, cubic };

  Mode mode = Mode::nearest;
  OutputCount count;
  bool align_corners = false;
  bool keeps_factor = false;  // places are computed with count.factor in place of the ratio of the sizes

  /// How torch computes. Its vectorized kernels find the nearest input in another way than its other kernels.
  struct Arithmetic {
    bool in_double = false;
    bool vectorized = false;
  };

  /// Each output is a weighted sum of inputs, its taps. All outputs have as many taps; the first taps of all outputs
  /// come before their second taps. Where an output is its nearest input, the weight is 1.
  struct Taps {
    std::vector<std::int64_t> inputs;
    std::vector<double> weights;
  };

  static constexpr std::int64_t fewest = 1;  // output
  std::int64_t outputs(std::int64_t n) const { return count.of(n); }
  Taps taps(std::int64_t n, Interval outputs, Arithmetic arithmetic) const;

  /// The first output whose middle lies in input `cut` or behind it, by the ratio of their numbers.
  std::int64_t aligned(std::int64_t n, std::int64_t cut) const;

  /// All inputs that these outputs read in any arithmetic; an empty interval for an empty one.
  Interval reads(std::int64_t n, Interval outputs) const;

 private:
  template <class Real>
  void append(Taps& taps, std::int64_t n, std::int64_t o, bool vectorized) const;
  template <class Real>
  std::int64_t nearest(std::int64_t n, std::int64_t o, bool vectorized) const;
  template <class Real>
  Real scale(std::int64_t n) const;
};

/// Blocks of the outputs that are cut as near as possible to where the blocks of the inputs are cut: each output is
/// with the inputs at its place; outputs before the first or behind the last input are with these. `Made` is a class
/// with the members `outputs` and `aligned`.
template <class Made>
Blocks aligned_blocks(const Made& resizing, const Blocks& inputs) {
  const auto n = inputs.extent(), m = resizing.outputs(n);
  Shape sizes;
  std::int64_t start = 0;
  for (std::int64_t i = 0; i < inputs.count(); ++i) {
    const auto cut = inputs.at(i).stop;
    const auto stop = cut == n ? m : cut == 0 ? 0 : std::min(resizing.aligned(n, cut), m);
    sizes.push_back(stop - start);
    start = stop;
  }
  return Blocks::of_sizes(sizes);
}

}  // namespace distdl::geometry
