// Indices of classes, as losses take them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>

namespace distdl::kernels {

struct CountedClasses {
  std::int64_t lowest = 0, highest = 0;
  std::int64_t count = 0;  // without those that are ignored
};

/// The range of integers that are not ignored. A number below 0 ignores no uint8.
CountedClasses counted_classes(const at::Tensor& target, std::optional<std::int64_t> ignored);

}  // namespace distdl::kernels
