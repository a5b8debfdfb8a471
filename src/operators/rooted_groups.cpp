#include "operators/rooted_groups.hpp"

#include <algorithm>
#include <set>

namespace distdl::operators {

std::vector<RootedGroup> rooted_groups(const Scope& scope, const geometry::Matching& matching, const Placement& one,
                                       const Placement& many) {
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
    group.communicator = group_communicator(scope, ranks);
    group.root = 0;
    group.is_root = one.mine == worker;
    group.is_member = many.mine && matching.one_of(*many.mine) == worker;
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace distdl::operators
