#include "comm/vote_rounds.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace distdl::comm {

namespace {

// On one host a message costs more than it waits, so fewer messages in more rounds are the fastest. Between hosts, up
// to eight ranks need one round.
constexpr int kRadixOnOneHost = 2, kRadixBetweenHosts = 8;

/// The rounds in which each of these ranks, of which one is at this place, hears of all of them.
std::vector<VoteRound> dissemination(std::size_t place, const std::vector<int>& ranks, int radix) {
  std::vector<VoteRound> rounds;
  const auto count = static_cast<int>(ranks.size()), own = static_cast<int>(place);
  const auto at = [&](std::int64_t other) { return ranks[static_cast<std::size_t>((other + count) % count)]; };
  for (std::int64_t distance = 1; distance < count; distance *= radix) {
    auto& round = rounds.emplace_back();
    for (std::int64_t i = 1; i < radix && i * distance < count; ++i) {
      round.to.push_back(at(own + i * distance));
      round.from.push_back(at(own - i * distance));
    }
  }
  return rounds;
}

}  // namespace

std::vector<VoteRound> vote_rounds(int rank, const std::vector<std::int64_t>& hosts) {
  std::vector<int> all, firsts, here;  // firsts: of the hosts; here: on this rank's host
  std::map<std::int64_t, int> known;
  for (int other = 0; std::cmp_less(other, hosts.size()); ++other) {
    const auto host = hosts[static_cast<std::size_t>(other)];
    all.push_back(other);
    if (known.try_emplace(host, other).second) firsts.push_back(other);
    if (host == hosts[static_cast<std::size_t>(rank)]) here.push_back(other);
  }
  if (firsts.size() == 1) return dissemination(static_cast<std::size_t>(rank), all, kRadixOnOneHost);
  if (std::cmp_less_equal(all.size(), kRadixBetweenHosts) || firsts.size() == all.size()) {
    return dissemination(static_cast<std::size_t>(rank), all, kRadixBetweenHosts);
  }
  // The ranks of a host are a tree, in which each rank but the first tells the one before it in the tree.
  const auto place = static_cast<std::size_t>(std::ranges::find(here, rank) - here.begin());
  constexpr std::size_t kBranches = kRadixBetweenHosts;
  std::vector<int> after;
  for (auto next = kBranches * place + 1; next <= kBranches * (place + 1) && next < here.size(); ++next) {
    after.push_back(here[next]);
  }
  std::vector<VoteRound> rounds;
  if (!after.empty()) rounds.push_back({.to = {}, .from = after});
  if (place == 0) {
    const auto own = static_cast<std::size_t>(std::ranges::find(firsts, rank) - firsts.begin());
    for (auto& round : dissemination(own, firsts, kRadixBetweenHosts)) rounds.push_back(std::move(round));
  } else {
    const auto before = here[(place - 1) / kBranches];
    rounds.push_back({.to = {before}, .from = {before}});
  }
  if (!after.empty()) rounds.push_back({.to = after, .from = {}});
  return rounds;
}

}  // namespace distdl::comm
