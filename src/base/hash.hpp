// Hashes that travel between ranks: equal texts have equal hashes on all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace distdl::base {

/// Never negative, so that its negative is a number as well.
inline std::int64_t hash_of(std::string_view text) {
  return static_cast<std::int64_t>(std::hash<std::string_view>{}(text) >> 1);
}

}  // namespace distdl::base
