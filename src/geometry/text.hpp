// Values as people read them in messages: [2, 3].
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

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

/// "rank 0: a; rank 1, 3: b", so that a job of many ranks stays readable.
inline std::string by_rank(const std::vector<int>& ranks, const std::vector<std::string>& texts) {
  std::vector<std::string> distinct;
  for (const auto& one : texts) {
    if (std::find(distinct.begin(), distinct.end(), one) == distinct.end()) distinct.push_back(one);
  }
  std::string result;
  for (const auto& one : distinct) {
    std::string those;
    for (std::size_t r = 0; r < texts.size(); ++r) {
      if (texts[r] == one) those += (those.empty() ? "" : ", ") + std::to_string(ranks[r]);
    }
    result += (result.empty() ? "rank " : "; rank ") + those + ": " + one;
  }
  return result;
}

}  // namespace distdl::geometry
