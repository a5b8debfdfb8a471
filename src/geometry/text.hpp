// Values as people read them in messages: [2, 3].
#pragma once

#include <string>

namespace distdl::geometry {

template <class Sequence>
std::string text(const Sequence& values) {
  std::string result = "[";
  for (const auto& value : values) {
    if (result.size() > 1) result += ", ";
    result += std::to_string(value);
  }
  return result + "]";
}

}  // namespace distdl::geometry
