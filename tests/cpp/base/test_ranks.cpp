// Lists of ranks: what they hold, and that those of a whole machine take no memory.
#include <numeric>

#include "../allocations.hpp"
#include "../check.hpp"
#include "base/ranks.hpp"

using distdl::base::Ranks;

namespace {

std::vector<int> from_to(int first, int last) {
  std::vector<int> ranks(static_cast<std::size_t>(last - first + 1));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

}  // namespace

TEST(a_list_has_what_it_was_made_of) {
  const std::vector<std::vector<int>> lists{{}, {7}, {0, 1, 2}, {5, 6, 7, 8}, {3, 5}, {2, 1, 0}, {0, 1, 3}};
  for (const auto& list : lists) {
    const Ranks ranks(list);
    CHECK_EQ(ranks.size(), list.size());
    CHECK_EQ(ranks.list(), list);
    for (std::size_t place = 0; place < list.size(); ++place) {
      CHECK_EQ(ranks[place], list[place]);
      CHECK_EQ(ranks.at(place), list[place]);
    }
    CHECK_THROWS(ranks.at(list.size()), "place " + std::to_string(list.size()));
  }
}

TEST(ascending_ranks_are_found) {
  const Ranks range(from_to(4, 6)), list(std::vector<int>{1, 4, 6});
  for (const auto rank : {4, 5, 6}) CHECK_EQ(range.place_of(rank), static_cast<std::size_t>(rank - 4));
  CHECK_EQ(range.place_of(0), std::size_t{0});
  CHECK_EQ(range.place_of(7), std::size_t{3});
  CHECK_EQ(range.place_of(99), std::size_t{3});
  CHECK(!range.contains(3) && range.contains(4) && range.contains(6) && !range.contains(7));
  CHECK_EQ(list.place_of(4), std::size_t{1});
  CHECK_EQ(list.place_of(5), std::size_t{2});
  CHECK(list.contains(6) && !list.contains(5) && !list.contains(7));
}

TEST(subsets_of_ascending_ranks) {
  const Ranks range(from_to(4, 6)), list(std::vector<int>{1, 4, 6}), none, pair(std::vector<int>{4, 6});
  CHECK(range.contains_all(pair) && list.contains_all(pair) && !pair.contains_all(range));
  CHECK(!range.contains_all(list) && !list.contains_all(range));
  CHECK(range.contains_all(none) && none.contains_all(none) && !none.contains_all(range));
  CHECK(!range.contains_all(Ranks(from_to(5, 7))) && !range.contains_all(Ranks(from_to(3, 5))));
}

/// Counted: a copy for each of a thousand operators would be 400 MB.
TEST(a_copy_of_the_ranks_of_a_machine_allocates_nothing) {
  const Ranks all(from_to(0, 99'999));
  const auto before = allocations::bytes;
  const auto copy = all;
  CHECK_EQ(copy[99'999], 99'999);
  CHECK_EQ(copy.place_of(54'321), std::size_t{54'321});
  CHECK(copy.contains_all(all));
  CHECK_EQ(allocations::bytes, before);
}
