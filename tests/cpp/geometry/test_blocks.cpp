#include "../check.hpp"
#include "geometry/blocks.hpp"

using namespace distdl::geometry;

TEST(balanced_blocks_give_the_first_ones_one_more) {
  CHECK_EQ(balanced_block(10, 4, 0), (Interval{0, 3}));
  CHECK_EQ(balanced_block(10, 4, 1), (Interval{3, 6}));
  CHECK_EQ(balanced_block(10, 4, 2), (Interval{6, 8}));
  CHECK_EQ(balanced_block(10, 4, 3), (Interval{8, 10}));
}

TEST(balanced_blocks_of_fewer_elements_than_workers_end_empty) {
  CHECK_EQ(balanced_block(2, 4, 1), (Interval{1, 2}));
  CHECK_EQ(balanced_block(2, 4, 2), (Interval{2, 2}));
  CHECK_EQ(balanced_block(0, 3, 2).size(), 0);
}

TEST(balanced_blocks_cover_in_order_for_every_size) {
  for (std::int64_t n = 0; n < 40; ++n) {
    for (std::int64_t p = 1; p < 12; ++p) {
      std::int64_t next = 0;
      const auto blocks = Blocks::balanced(n, p);
      for (std::int64_t i = 0; i < p; ++i) {
        const auto block = blocks.at(i);
        CHECK_EQ(block, balanced_block(n, p, i));
        CHECK_EQ(block.start, next);
        CHECK(block.size() == n / p || block.size() == n / p + 1);
        CHECK(i == 0 || block.size() <= blocks.at(i - 1).size());
        next = block.stop;
      }
      CHECK_EQ(next, n);
    }
  }
}

TEST(blocks_of_any_sizes) {
  const auto blocks = Blocks::of_sizes({3, 0, 5});
  CHECK_EQ(blocks.extent(), 8);
  CHECK_EQ(blocks.count(), 3);
  CHECK_EQ(blocks.at(1), (Interval{3, 3}));
  CHECK_EQ(blocks.at(2), (Interval{3, 8}));
}

TEST(blocks_of_a_dimension_of_a_million_workers_are_arithmetic) {
  const auto blocks = Blocks::balanced(1'000'000'000'007, 1'000'000);
  CHECK_EQ(blocks.at(999'999).stop, 1'000'000'000'007);
  CHECK_EQ(blocks.at(6).size(), 1'000'001);
  CHECK_EQ(blocks.at(7).size(), 1'000'000);
}

TEST(impossible_blocks_are_refused_with_their_values) {
  CHECK_THROWS(balanced_block(10, 0, 0), "of 0 over extent 10");
  CHECK_THROWS(balanced_block(10, 4, 4), "worker 4 of 4");
  CHECK_THROWS(balanced_block(10, 4, -1), "worker -1 of 4");
  CHECK_THROWS(balanced_block(-1, 4, 0), "extent -1");
  CHECK_THROWS(Blocks::of_sizes({2, -1}), "negative size -1");
}
