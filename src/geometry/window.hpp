// Sliding windows along one dimension: what convolution and pooling read.
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

  /// The inputs that the windows of `outputs` read, beyond [0, n) too where the padding is. No windows read nothing.
  Interval reads(Interval outputs) const;
};

}  // namespace distdl::geometry
