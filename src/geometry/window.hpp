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

  /// The first output whose window has its middle at input `cut` or behind it; the left one of two in the middle.
  std::int64_t aligned(std::int64_t n, std::int64_t cut) const;

  /// The inputs that the windows of `outputs` read, beyond [0, n) too where the padding is, whatever n is. No windows
  /// read nothing.
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

  /// The first output that is nearer to the middle of input `cut`'s window than to that of the one before.
  std::int64_t aligned(std::int64_t n, std::int64_t cut) const;

  /// All of the n inputs that add to these outputs. Where there are outputs it is one input at least, and its first
  /// output is not behind the first of them: so the transposed convolution of what is read begins there or before.
  Interval reads(std::int64_t n, Interval outputs) const;
};

}  // namespace distdl::geometry
