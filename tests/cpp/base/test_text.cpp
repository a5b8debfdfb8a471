#include <string>
#include <string_view>

#include "../check.hpp"
#include "base/text.hpp"

using namespace distdl::base;

TEST(a_text_is_cut_between_characters) {
  const std::string text = "a\u00e9\u20ac\U0001f600";  // of 1, 2, 3 and 4 bytes
  const std::string sizes = "0113336666";
  for (std::size_t bytes = 0; bytes < 10; ++bytes) {
    CHECK_EQ(cut_to(text, bytes).size(), static_cast<std::size_t>(sizes[bytes] - '0'));
  }
  CHECK_EQ(cut_to(text, 10), std::string_view(text));
  CHECK_EQ(cut_to(text, 100), std::string_view(text));
}

TEST(many_ranks_are_ranges) {
  CHECK_EQ(ranges({}), std::string());
  CHECK_EQ(ranges({3, 4}), std::string("3, 4"));
  CHECK_EQ(ranges({0, 1, 2, 4, 6, 7, 5}), std::string("0-2, 4, 6, 7, 5"));
  std::vector<int> ranks;
  std::vector<std::string> texts;
  for (int rank = 0; rank < 1000; ++rank) {
    ranks.push_back(rank);
    texts.emplace_back(rank == 42 ? "b" : "a");
  }
  CHECK_EQ(by_rank(ranks, texts), std::string("rank 0-41, 43-999: a; rank 42: b"));
}
