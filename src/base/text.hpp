// Values as people read them in messages: [2, 3].
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace distdl::base {

template <class Sequence>
std::string text(const Sequence& values) {
  std::string result = "[";
  for (const auto& value : values) {
    if (result.size() > 1) result += ", ";
    result += std::to_string(value);
  }
  return result + "]";
}

/// "a, b".
inline std::string joined(const std::vector<std::string>& texts) {
  std::string result;
  for (const auto& text : texts) result += (result.empty() ? "" : ", ") + text;
  return result;
}

/// The beginning of a text in UTF-8, at most so many bytes, which does not end within a character.
inline std::string_view cut_to(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  const auto within = [&] { return (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80U; };
  while (bytes > 0 && within()) --bytes;
  return text.substr(0, bytes);
}

/// "0, 1, 3-9": three and more numbers that follow each other as a range.
inline std::string ranges(const std::vector<int>& numbers) {
  std::string result;
  const auto add = [&](const char* separator, int number) { result += separator + std::to_string(number); };
  for (std::size_t first = 0, last = 0; first < numbers.size(); first = ++last) {
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    add(first > 0 ? ", " : "", numbers[first]);
    if (last > first) add(last > first + 1 ? "-" : ", ", numbers[last]);
  }
  return result;
}

/// "rank 0: a; rank 1, 3: b", so that a job of many ranks stays readable.
inline std::string by_rank(const std::vector<int>& ranks, const std::vector<std::string>& texts) {
  std::vector<std::string> distinct;
  for (const auto& text : texts) {
    if (std::find(distinct.begin(), distinct.end(), text) == distinct.end()) distinct.push_back(text);
  }
  std::string result;
  for (const auto& text : distinct) {
    std::vector<int> ranks_with_text;
    for (std::size_t r = 0; r < texts.size(); ++r) {
      if (texts[r] == text) ranks_with_text.push_back(ranks[r]);
    }
    result += (result.empty() ? "rank " : "; rank ") + ranges(ranks_with_text) + ": " + text;
  }
  return result;
}

}  // namespace distdl::base
