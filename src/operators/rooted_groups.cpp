#include "operators/rooted_groups.hpp"

#include <set>
#include <utility>

namespace distdl::operators {

std::vector<RootedGroup> rooted_groups(const RankSet& rank_set, const geometry::Matching& matching,
                                       const Placement& one, const Placement& many) {
  // Ascending, so that no two ranks make the communicators of two groups in opposite orders.
  std::set<std::int64_t> mine;
  if (one.mine) mine.insert(*one.mine);
  if (many.mine) mine.insert(matching.one_of(*many.mine));

  std::vector<RootedGroup> groups;
  for (const auto worker : mine) {
    const auto root = one.rank_of(worker);
    std::vector<int> ranks{root};
    RootedGroup group;
    for (const auto member : matching.many_of(worker)) {
      const auto rank = many.rank_of(member);
      group.members.push_back(rank == root ? 0 : static_cast<int>(ranks.size()));
      if (rank != root) ranks.push_back(rank);
    }
    group.communicator = group_communicator(rank_set, ranks);
    group.ranks = std::move(ranks);
    group.root = 0;
    group.is_root = one.mine == worker;
    group.is_member = many.mine && matching.one_of(*many.mine) == worker;
    groups.push_back(std::move(group));
  }
  return groups;
}

Traffic traffic_of(const RootedPlan& plan, const RankSet& rank_set, bool to_roots) {
  Traffic traffic;
  for (const auto& group : plan.groups) {
    if (!group.communicator) continue;
    const auto exchange = [&](int peer, std::int64_t bytes, bool sends) {
      traffic.exchange(rank_set.user_rank(group.ranks.at(static_cast<std::size_t>(peer))), sends ? bytes : 0,
                       sends ? 0 : bytes);
    };
    if (!group.is_root) {
      exchange(group.root, plan.at_member.nbytes(), to_roots);
      continue;
    }
    for (const auto member : group.members) {
      if (member != group.root) exchange(member, plan.at_root.nbytes(), !to_roots);
    }
  }
  return traffic;
}

}  // namespace distdl::operators
