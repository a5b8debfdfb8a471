// The matching rules, and the numbered examples of sum-reduction, in which `one` is P_y and `many` is P_x.
#include "../check.hpp"
#include "geometry/matching.hpp"

using namespace distdl::geometry;

namespace {

Matching match(Shape one, Shape many, bool transpose_one = false, bool transpose_many = false) {
  return Matching("SumReduce", {"P_y", std::move(one), transpose_one}, {"P_x", std::move(many), transpose_many});
}

using Ranks = std::vector<std::int64_t>;

}  // namespace

TEST(example_1_four_to_one) { CHECK_EQ(match({1}, {4}).members_of(0), (Ranks{0, 1, 2, 3})); }

TEST(example_2_two_by_three_to_one) { CHECK_EQ(match({1}, {2, 3}).members_of(0), (Ranks{0, 1, 2, 3, 4, 5})); }

TEST(example_3_rows) {
  const auto matching = match({3, 1}, {3, 4});
  CHECK_EQ(matching.members_of(0), (Ranks{0, 1, 2, 3}));
  CHECK_EQ(matching.members_of(2), (Ranks{8, 9, 10, 11}));
}

TEST(example_4_three_dimensions) {
  const auto matching = match({1, 1, 3}, {4, 4, 3});
  CHECK_EQ(matching.members_of(1).size(), 16);
  for (const auto rank : matching.members_of(1)) CHECK_EQ(rank % 3, 1);
}

TEST(example_5_does_not_reduce) {
  CHECK_THROWS(match({1, 1, 3}, {3, 3, 2}),
               "SumReduce: P_y has shape [1, 1, 3] and P_x has shape [3, 3, 2]; in dimension 2");
}

TEST(example_6_does_not_reduce_unless_transposed) {
  CHECK_THROWS(match({3, 1}, {1, 3}), "in dimension 0");
  for (std::int64_t i = 0; i < 3; ++i) {
    CHECK_EQ(match({3, 1}, {1, 3}, true, false).members_of(i), (Ranks{i}));
    CHECK_EQ(match({3, 1}, {1, 3}, false, true).members_of(i), (Ranks{i}));
  }
}

TEST(example_7_transposed_source) {  // 3 x 4 read as 4 x 3, onto 1 x 3: worker j receives from row j
  const auto matching = match({1, 3}, {3, 4}, false, true);
  CHECK_EQ(matching.members_of(1), (Ranks{4, 5, 6, 7}));
}

TEST(example_8_transposed_destination) {  // 3 x 4 onto 4 x 1 read as 1 x 4: worker j receives from column j
  const auto matching = match({4, 1}, {3, 4}, true, false);
  CHECK_EQ(matching.members_of(2), (Ranks{2, 6, 10}));
}

TEST(the_transpose_comes_before_the_extension) {  // [3, 4] reversed and extended is [1, 4, 3]
  const auto matching = match({3, 4}, {2, 4, 3}, true, false);
  // Worker (i, j) of 3 x 4 stands at (j, i) of 4 x 3.
  CHECK_EQ(matching.members_of(1 * 4 + 2), (Ranks{2 * 3 + 1, 12 + 2 * 3 + 1}));
}

TEST(both_directions_agree) {
  const std::vector<Matching> matchings{match({1, 3}, {4, 3}), match({3}, {2, 2, 3}),
                                        match({1, 3}, {3, 4}, false, true), match({4, 3, 1}, {1, 3, 4}, true, false),
                                        match({2, 1, 2}, {2, 5, 2}, true, true)};
  const std::vector<std::int64_t> ones{3, 3, 3, 12, 4}, manys{12, 12, 12, 12, 20};
  for (std::size_t m = 0; m < matchings.size(); ++m) {
    std::vector<int> met(static_cast<std::size_t>(manys[m]), 0);
    for (std::int64_t one = 0; one < ones[m]; ++one) {
      for (const auto many : matchings[m].members_of(one)) {
        CHECK_EQ(matchings[m].root_of(many), one);
        ++met[static_cast<std::size_t>(many)];
      }
    }
    CHECK_EQ(met, std::vector<int>(met.size(), 1));
  }
}

TEST(the_one_side_has_not_more_dimensions) {
  CHECK_THROWS(match({1, 1}, {4}), "P_y must not have more dimensions than P_x");
}
