// The cost of a plan depends on the number of the worker's peers: it is the same among a million workers as among a
// few.
#include "../allocations.hpp"
#include "../check.hpp"
#include "geometry/exchange_plan.hpp"

using namespace distdl::geometry;

namespace {

struct Cost {
  std::int64_t peers = 0;
  std::int64_t bytes = 0;    // that are allocated for the description of the wanted boxes and for the plan
  std::int64_t queries = 0;  // how often the plan asks for a block of the target side
};

/// Blocks of 4 elements: by arithmetic, or from a list of sizes that are not all the same.
Blocks blocks_of_four(std::int64_t count, bool balanced) {
  if (balanced) return Blocks::balanced(4 * count, count);
  Shape sizes(static_cast<std::size_t>(count), 4);
  sizes.front() = 5;
  sizes.back() = 3;
  return Blocks::of_sizes(sizes);
}

/// The plan of the worker in the middle: source and target blocks that its block, grown by `halo`, meets.
Cost cost(const std::vector<Blocks>& owned, const std::vector<Blocks>& targets, std::int64_t halo) {
  std::int64_t source = 0, target = 0;
  for (std::size_t d = 0; d < owned.size(); ++d) {
    source = source * owned[d].count() + owned[d].count() / 2;
    target = target * targets[d].count() + targets[d].count() / 2;
  }
  Cost cost;
  const auto before = allocations::bytes;
  Wanted wanted;
  for (const auto& blocks : targets) {
    wanted.bounds.push_back({blocks.count(), [blocks, halo, &cost](std::int64_t i) {
                               ++cost.queries;
                               return blocks.at(i).grown(halo, halo);
                             }});
  }
  const auto plan = plan_exchange(owned, wanted, source, target, std::vector<bool>(owned.size(), true));
  cost.bytes = allocations::bytes - before;
  cost.peers = std::ssize(plan.sends) + std::ssize(plan.receives);
  return cost;
}

/// The cost with `count` workers along each dimension.
Cost halo_cost(std::size_t dims, std::int64_t count, bool balanced) {
  const std::vector<Blocks> owned(dims, blocks_of_four(count, balanced));
  return cost(owned, owned, 1);
}

Cost repartition_cost(std::int64_t count, bool balanced) {
  const auto blocks = blocks_of_four(count, balanced);
  return cost({blocks, blocks}, {Blocks::balanced(4 * count, count / 2), Blocks::balanced(4 * count, 2 * count)}, 0);
}

/// A search looks at one more block for each doubling of the workers. There are six searches in each dimension: for
/// both ends of a block, in the tensor itself and in the two copies beside it that a periodic dimension adds.
void check_costs(const Cost& few, const Cost& many, std::int64_t dims, int doublings) {
  CHECK_EQ(few.peers, many.peers);
  CHECK_EQ(few.bytes, many.bytes);
  CHECK(many.queries <= few.queries + 6 * dims * doublings);
}

}  // namespace

TEST(halo_exchange_among_a_million_workers) {
  for (const bool balanced : {true, false}) {
    const auto plane = halo_cost(2, 1024, balanced), space = halo_cost(3, 100, balanced);
    CHECK_EQ(plane.peers, 2 * 9);
    CHECK_EQ(space.peers, 2 * 27);
    check_costs(halo_cost(2, 16, balanced), plane, 2, 6);
    check_costs(halo_cost(3, 16, balanced), space, 3, 3);
  }
}

TEST(repartition_among_a_million_workers) {
  for (const bool balanced : {true, false}) {
    const auto few = repartition_cost(16, balanced), many = repartition_cost(1024, balanced);
    CHECK(many.peers <= 2 * 2 * 4);
    check_costs(few, many, 2, 6);
  }
}
