#include "../check.hpp"
#include "geometry/grid.hpp"

using namespace distdl::geometry;

TEST(ranks_are_row_major) {
  const Grid grid({2, 3, 4});
  CHECK_EQ(grid.size(), 24);
  CHECK_EQ(grid.index(0), (Shape{0, 0, 0}));
  CHECK_EQ(grid.index(5), (Shape{0, 1, 1}));
  CHECK_EQ(grid.index(23), (Shape{1, 2, 3}));
  for (std::int64_t rank = 0; rank < grid.size(); ++rank) CHECK_EQ(grid.rank(grid.index(rank)), rank);
}

TEST(a_grid_of_no_dimensions_has_one_worker) {
  const Grid grid{Shape{}};
  CHECK_EQ(grid.size(), 1);
  CHECK_EQ(grid.index(0), Shape{});
  CHECK_EQ(grid.rank({}), 0);
}

TEST(ranks_along_axes) {
  const Grid grid({2, 3, 4});
  CHECK_EQ(grid.ranks_along(7, {1}), (std::vector<std::int64_t>{3, 7, 11}));
  CHECK_EQ(grid.ranks_along(7, {0}), (std::vector<std::int64_t>{7, 19}));
  CHECK_EQ(grid.ranks_along(0, {0, 1}), (std::vector<std::int64_t>{0, 4, 8, 12, 16, 20}));
  CHECK_EQ(grid.ranks_along(7, {}), (std::vector<std::int64_t>{7}));
}

TEST(what_is_outside_is_refused_with_its_values) {
  const Grid grid({2, 3});
  CHECK_THROWS(grid.index(6), "rank 6 is not in a partition of shape [2, 3]");
  CHECK_THROWS(grid.index(-1), "rank -1");
  CHECK_THROWS(grid.rank({1, 3}), "index [1, 3]");
  CHECK_THROWS(grid.rank({1}), "index [1]");
  CHECK_THROWS(Grid({2, 0}), "partition shape [2, 0]");
}
