// Division of integers with the rounding that counting outputs needs.
#pragma once

#include <cstdint>

namespace distdl::geometry {

/// The first i >= 0 for which i * b >= a, with b > 0: a / b rounded up, or 0.
inline std::int64_t first_multiple(std::int64_t a, std::int64_t b) { return a <= 0 ? 0 : (a - 1) / b + 1; }

}  // namespace distdl::geometry
