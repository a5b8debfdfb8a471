// Plans are checked against the definition: every element that a worker wants comes from its owner, exactly once.
#include <map>
#include <set>

#include "../check.hpp"
#include "geometry/exchange_plan.hpp"

using namespace distdl::geometry;

namespace {

Intervals intervals_of(const Blocks& blocks) {
  return {blocks.count(), [blocks](std::int64_t i) { return blocks.at(i); }};
}

Intervals grown(const Blocks& blocks, std::int64_t left, std::int64_t right) {
  return {blocks.count(), [=](std::int64_t i) { return blocks.at(i).grown(left, right); }};
}

std::int64_t wrap(std::int64_t a, std::int64_t n) { return ((a % n) + n) % n; }

/// Calls visit for every element of a box.
template <class Visit>
void for_each_element(const Box& box, Visit visit) {
  const Grid elements([&] {
    auto shape = shape_of(box);
    for (auto& extent : shape) extent = std::max<std::int64_t>(extent, 1);
    return shape;
  }());
  if (volume(box) == 0) return;
  for (std::int64_t e = 0; e < elements.size(); ++e) {
    auto at = elements.index(e);
    for (std::size_t d = 0; d < at.size(); ++d) at[d] += box[d].start;
    visit(at);
  }
}

/// Runs all workers' plans on element numbers and compares with what each worker wants.
void check_plans(const std::vector<Blocks>& owned, const Wanted& wanted, const std::vector<bool>& periodic) {
  Shape source_shape, target_shape;
  for (std::size_t d = 0; d < owned.size(); ++d) {
    source_shape.push_back(owned[d].count());
    target_shape.push_back(wanted.bounds[d].count);
  }
  const Grid sources(source_shape), targets(target_shape);

  // What travels from worker to worker, in order: the global coordinates of each message's elements.
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::vector<Shape>>> messages;
  for (std::int64_t s = 0; s < sources.size(); ++s) {
    const auto plan = plan_exchange(owned, wanted, s, std::nullopt, periodic);
    const auto index = sources.index(s);
    for (const auto& send : plan.sends) {
      std::vector<Shape> elements;
      for_each_element(send.region, [&](Shape at) {
        for (std::size_t d = 0; d < at.size(); ++d) {
          CHECK(at[d] >= 0 && at[d] < plan.input_shape[d]);
          at[d] += owned[d].at(index[d]).start;
        }
        elements.push_back(at);
      });
      messages[{s, send.peer}].push_back(elements);
    }
  }
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> taken;
  for (std::int64_t t = 0; t < targets.size(); ++t) {
    const auto plan = plan_exchange(owned, wanted, std::nullopt, t, periodic);
    const auto box = wanted.box(targets, t);
    std::set<Shape> filled;
    for (const auto& receive : plan.receives) {
      auto& next = taken[{receive.peer, t}];
      const auto& sent = messages[{receive.peer, t}];
      CHECK(next < sent.size());
      if (next >= sent.size()) return;
      const auto& elements = sent[next++];
      std::size_t e = 0;
      for_each_element(receive.region, [&](const Shape& at) {
        CHECK(filled.insert(at).second);
        for (std::size_t d = 0; d < at.size(); ++d) {
          const auto global = at[d] + box[d].start;
          CHECK_EQ(elements.at(e)[d], periodic[d] ? wrap(global, owned[d].extent()) : global);
        }
        ++e;
      });
      CHECK_EQ(e, elements.size());
    }
    for_each_element(box, [&](Shape at) {  // every element that lies in the tensor arrives, and no other
      bool exists = true;
      for (std::size_t d = 0; d < at.size(); ++d) {
        exists = exists && owned[d].extent() > 0 && (periodic[d] || (at[d] >= 0 && at[d] < owned[d].extent()));
        at[d] -= box[d].start;
      }
      CHECK_EQ(filled.contains(at), exists);
    });
  }
  for (const auto& [pair, sent] : messages) CHECK_EQ(taken[pair], sent.size());
}

}  // namespace

TEST(repartitions_of_every_small_size) {
  for (std::int64_t n = 0; n < 14; ++n) {
    for (std::int64_t p = 1; p < 7; ++p) {
      for (std::int64_t q = 1; q < 7; ++q) {
        check_plans({Blocks::balanced(n, p)}, {{intervals_of(Blocks::balanced(n, q))}}, {false});
      }
    }
  }
}

TEST(repartition_3x3_to_4x4_sends_the_middle_block_to_four_workers) {
  const std::vector<Blocks> owned{Blocks::balanced(12, 3), Blocks::balanced(12, 3)};
  const Wanted wanted{{intervals_of(Blocks::balanced(12, 4)), intervals_of(Blocks::balanced(12, 4))}};
  const auto plan = plan_exchange(owned, wanted, 4, std::nullopt, {false, false});
  CHECK_EQ(plan.sends.size(), 4);
  std::vector<std::int64_t> peers;
  for (const auto& send : plan.sends) peers.push_back(send.peer);
  CHECK_EQ(peers, (std::vector<std::int64_t>{5, 6, 9, 10}));
  CHECK_EQ(plan.sends[0].region, (Box{{0, 2}, {0, 2}}));
  CHECK_EQ(volume(plan.sends), 16);
  check_plans(owned, wanted, {false, false});
}

TEST(repartition_from_unbalanced_blocks_in_three_dimensions) {
  check_plans({Blocks::of_sizes({1, 0, 4}), Blocks::of_sizes({3, 2}), Blocks::balanced(3, 1)},
              {{intervals_of(Blocks::balanced(5, 2)), intervals_of(Blocks::balanced(5, 3)),
                intervals_of(Blocks::balanced(3, 4))}},
              {false, false, false});
}

TEST(halos_of_every_width) {
  for (std::int64_t n = 1; n < 9; ++n) {
    for (std::int64_t p = 1; p < 5; ++p) {
      for (std::int64_t left = 0; left < 6; ++left) {
        for (std::int64_t right = 0; right < 4; ++right) {
          const auto blocks = Blocks::balanced(n, p);
          for (const bool periodic : {false, true}) check_plans({blocks}, {{grown(blocks, left, right)}}, {periodic});
        }
      }
    }
  }
}

TEST(corners_travel_directly) {
  const auto blocks = Blocks::balanced(6, 3);
  const Wanted wanted{{grown(blocks, 1, 1), grown(blocks, 1, 1)}};
  CHECK_EQ(plan_exchange({blocks, blocks}, wanted, 4, 4, {false, false}).sends.size(), 9);
  check_plans({blocks, blocks}, wanted, {false, false});
  check_plans({blocks, blocks}, wanted, {true, false});
  check_plans({blocks, blocks}, wanted, {true, true});
}

TEST(a_halo_may_be_wider_than_the_tensor_and_wrap_several_times) {
  const auto blocks = Blocks::of_sizes({1, 2});
  check_plans({blocks}, {{grown(blocks, 8, 7)}}, {true});
  check_plans({blocks}, {{grown(blocks, 8, 7)}}, {false});
}

TEST(negative_halos_cut_away) {
  const auto blocks = Blocks::balanced(11, 3);
  check_plans({blocks}, {{grown(blocks, -1, -1)}}, {false});
  check_plans({blocks}, {{grown(blocks, -2, 3)}}, {true});
}

TEST(each_worker_may_want_something_else) {
  const auto blocks = Blocks::balanced(9, 3);
  Wanted wanted{{grown(blocks, 3, 2)}};
  wanted.exact = [&](std::int64_t worker) {
    return Box{worker == 1 ? blocks.at(1).grown(3, 0) : blocks.at(worker).grown(0, 2)};
  };
  check_plans({blocks}, wanted, {false});
  check_plans({blocks}, wanted, {true});
}

TEST(bounds_of_intervals_in_any_order) {
  const std::vector<Interval> wanted{{4, 4}, {5, 9}, {-3, 2}, {7, 6}, {2, 3}, {100, 100}};
  const auto bounds = bounds_of(wanted);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    CHECK(wanted[i].empty() || intersect(bounds[i], wanted[i]) == wanted[i]);
    CHECK(i == 0 || bounds[i].start >= bounds[i - 1].start);
    CHECK(i == 0 || bounds[i].stop >= bounds[i - 1].stop);
  }
  CHECK_EQ(bounds_of({{3, 3}, {2, 1}}).size(), 2);
  CHECK(bounds_of({{3, 3}, {2, 1}}).front().empty());
}

TEST(wanted_intervals_in_any_order) {
  const auto wanted = wanted_intervals({{{5, 12}, {-4, 3}, {4, 4}}, {{4, 6}, {0, 5}}}, Grid({3, 2}));
  CHECK_EQ(wanted.box(Grid({3, 2}), 3), (Box{{-4, 3}, {0, 5}}));
  for (const bool periodic : {false, true}) {
    check_plans({Blocks::balanced(9, 3), Blocks::balanced(6, 2)}, wanted, {periodic, false});
  }
}

TEST(no_dimensions) {
  const auto plan = plan_exchange({}, {}, 0, 0, {});
  CHECK_EQ(plan.sends.size(), 1);
  CHECK_EQ(plan.receives.size(), 1);
  CHECK_EQ(volume(plan.sends), 1);
}

TEST(a_million_workers_cost_no_more_than_the_peers) {
  const std::vector<Blocks> owned{Blocks::balanced(4096, 1024), Blocks::balanced(4096, 1024), Blocks::balanced(64, 1)};
  const Wanted wanted{{intervals_of(Blocks::balanced(4096, 100)), intervals_of(Blocks::balanced(4096, 100)),
                       intervals_of(Blocks::balanced(64, 100))}};
  const auto plan = plan_exchange(owned, wanted, 524'800, 500'000, {false, false, false});
  CHECK(plan.sends.size() <= 400);  // at most 2 x 2 peers in the plane, 64 along the split dimension
  CHECK_EQ(volume(plan.sends), 4 * 4 * 64);
  CHECK_EQ(volume(plan.receives), volume(plan.output_shape));
}

TEST(overlaps_are_noticed) {
  CHECK(disjoint({{0, {{0, 2}}}, {1, {{2, 4}}}}));
  CHECK(!disjoint({{0, {{0, 3}}}, {1, {{2, 4}}}}));
  CHECK(disjoint({{0, {{0, 2}, {0, 2}}}, {1, {{0, 2}, {2, 4}}}}));
}
