// Which ranks send to which in a vote, round by round.
#pragma once

#include <cstdint>
#include <vector>

namespace distdl::comm {

/// In a round a rank first sends what it knows to some ranks, and then receives what others know.
struct VoteRound {
  std::vector<int> to, from;
};

/// The rounds of a rank, after which it knows what every rank knew.
///
/// On one host, and of up to eight ranks, all ranks tell each other: in each round, those 1, 2, ..., radix - 1
/// distances behind them, and the distance is multiplied by the radix from round to round. More ranks on several hosts,
/// of which some share one, first tell the first rank of their host. Only these ranks then tell each other, and last
/// they tell their hosts.
///
/// `hosts` names the host of each rank, by any numbers.
std::vector<VoteRound> vote_rounds(int rank, const std::vector<std::int64_t>& hosts);

}  // namespace distdl::comm
