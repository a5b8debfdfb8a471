// Which way a sum takes. It needs neither tensors nor messages.
#include "../check.hpp"
#include "operators/sum_route.hpp"

using namespace distdl::operators;

namespace {

constexpr std::int64_t kKiB = 1 << 10, kMiB = 1 << 20;

/// All of so many ranks contribute a vector of so many bytes, and receive the sum.
SumSize everyone(std::int64_t bytes, int ranks) {
  return {.bytes = bytes, .bytes_to_a_rank = bytes, .ranks = ranks, .contributors = ranks, .all_receive = true};
}

SumSize to_one_root(std::int64_t bytes, int ranks, int contributors) {
  return {.bytes = bytes, .bytes_to_a_rank = bytes, .ranks = ranks, .contributors = contributors};
}

TEST(small_vectors_of_few_ranks_travel_directly) {
  CHECK(route_of(everyone(0, 8)) == SumRoute::direct);
  CHECK(route_of(everyone(8 * kKiB, 8)) == SumRoute::direct);
  CHECK(route_of(everyone(8 * kKiB + 1, 8)) == SumRoute::mpi);
  CHECK(route_of(everyone(8 * kKiB, 9)) == SumRoute::mpi);
  CHECK(route_of(to_one_root(8 * kKiB, 3, 2)) == SumRoute::direct);
}

TEST(two_ranks_that_want_the_sum_of_small_vectors_add_twice) {
  CHECK(route_of(everyone(8 * kKiB + 1, 2)) == SumRoute::twice);
  CHECK(route_of(everyone(2 * kMiB, 2)) == SumRoute::twice);
  CHECK(route_of(everyone(2 * kMiB + 1, 2)) == SumRoute::blocks);
  CHECK(route_of(to_one_root(64 * kKiB, 2, 2)) == SumRoute::mpi);
}

TEST(large_vectors_are_added_in_blocks) {
  CHECK(route_of(everyone(3 * 64 * kKiB, 3)) == SumRoute::blocks);
  CHECK(route_of(everyone(3 * 64 * kKiB - 1, 3)) == SumRoute::mpi);
  CHECK(route_of(to_one_root(64 * kKiB, 2, 1)) == SumRoute::blocks);
  CHECK(route_of(to_one_root(64 * kKiB, 1, 0)) == SumRoute::mpi);
}

TEST(scattered_sums_go_by_their_largest_part) {
  const auto scattered = [](std::int64_t largest) {
    return route_of({.bytes = 32 * kKiB, .bytes_to_a_rank = largest, .ranks = 4, .contributors = 4});
  };
  CHECK(scattered(8 * kKiB) == SumRoute::direct);
  CHECK(scattered(9 * kKiB) == SumRoute::mpi);
}

}  // namespace
