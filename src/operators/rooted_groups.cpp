#include "operators/rooted_groups.hpp"

#include <set>
#include <utility>

namespace distdl::operators {

std::vector<RootedGroup> rooted_groups(const RankSet& rank_set, const geometry::Matching& matching,
                                       const Placement& roots, const Placement& members) {
  // Ascending, so that no two ranks make the communicators of two groups in opposite orders.
  std::set<std::int64_t> own_roots;
  if (roots.own) own_roots.insert(*roots.own);
  if (members.own) own_roots.insert(matching.root_of(*members.own));

  std::vector<RootedGroup> groups;
  for (const auto worker : own_roots) {
    const auto root = roots.rank_of(worker);
    std::vector<int> ranks{root};
    RootedGroup group;
    for (const auto member : matching.members_of(worker)) {
      const auto rank = members.rank_of(member);
      group.members.push_back(rank == root ? 0 : static_cast<int>(ranks.size()));
      if (rank != root) ranks.push_back(rank);
    }
    group.communicator = group_communicator(rank_set, ranks);
    group.ranks = std::move(ranks);
    group.root = 0;
    group.is_root = roots.own == worker;
    group.is_member = members.own && matching.root_of(*members.own) == worker;
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
