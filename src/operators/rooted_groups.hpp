// The groups of Broadcast and SumReduce: a root and its members.
#pragma once

#include <memory>
#include <vector>

#include "agreement/placement.hpp"
#include "geometry/matching.hpp"
#include "operators/linear_operator.hpp"

namespace distdl::operators {

/// One group as this rank sees it. A rank is in at most two: as the root of one, and as a member of another.
struct RootedGroup {
  comm::CommunicatorPtr communicator;  // of the root and the members; null when this rank is alone
  std::vector<int> ranks;              // of the communicator in the set of ranks
  int root = 0;                        // in `communicator`
  std::vector<int> members;            // in `communicator`; the root may be among them
  bool is_root = false;
  bool is_member = false;
};

/// This rank's groups. Communicators are made here: collective over the ranks of both sides.
std::vector<RootedGroup> rooted_groups(const RankSet& rank_set, const geometry::Matching& matching,
                                       const Placement& roots, const Placement& members);

/// The groups with this rank's tensor on either side, for one global structure.
struct RootedPlan {
  std::vector<RootedGroup> groups;
  Structure at_root;       // the tensor of a root
  Structure at_member;     // the tensor of a member
  bool in_pieces = false;  // see through_host()
};
using RootedPlanPtr = std::shared_ptr<const RootedPlan>;

/// The traffic from the roots to the members, or in the other direction.
Traffic traffic_of(const RootedPlan& plan, const RankSet& rank_set, bool to_roots);

}  // namespace distdl::operators
