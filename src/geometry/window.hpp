// Sliding windows along one dimension: what convolution, transposed convolution and pooling read.
#pragma once

#include <cstdint>

#include "geometry/interval.hpp"

namespace distdl::geometry {

/// Window o reads the inputs o * stride - padding_left + dilation * j for j in [0, kernel).
struct Window {
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t padding_left = 0;
  std::int64_t padding_right = 0;
  std::int64_t dilation = 1;
  bool ceil_mode = false;

  std::int64_t reach() const { return dilation * (kernel - 1) + 1; }

  /// How many windows torch.nn places over n inputs; 0 when none fits.
  std::int64_t outputs(std::int64_t n) const;

  static constexpr std::int64_t fewest = 1;  // output

  /// The first output whose window has its middle at input `cut` or behind it. A window of even reach has two inputs in
  /// its middle, of which the left one counts.
  std::int64_t aligned(std::int64_t n, std::int64_t cut) const;

  /// The inputs that the windows of `outputs` read, in the padding beyond [0, n) too; they do not depend on n. For an
  /// empty interval it is an empty interval.
  Interval reads(std::int64_t n, Interval outputs) const;
};

/// Input i adds to the outputs i * stride - padding + dilation * j for j in [0, kernel): a transposed convolution.
struct TransposedWindow {
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  std::int64_t output_padding = 0;  // more outputs on the right; less than the stride or the dilation

  std::int64_t reach() const { return dilation * (kernel - 1) + 1; }

  /// The first output that input i adds to, even if the padding cuts it off.
  std::int64_t first(std::int64_t i) const { return i * stride - padding; }

  std::int64_t outputs(std::int64_t n) const { return first(n - 1) - padding + reach() + output_padding; }

  /// The first output that is nearer to the middle of the window of input `cut` than to the middle of the window
  /// before.
  std::int64_t aligned(std::int64_t n, std::int64_t cut) const;

  /// All of the n inputs that add to these outputs. For outputs that are not empty there is at least one such input,
  /// and the first input's first output is not behind the first of `outputs`: so the transposed convolution of these
  /// inputs begins there or before.
  Interval reads(std::int64_t n, Interval outputs) const;
};

}  // namespace distdl::geometry
