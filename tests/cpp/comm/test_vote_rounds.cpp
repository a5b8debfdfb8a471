// What every rank knows after the rounds of a vote, and how many messages it takes. Without MPI.
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "../check.hpp"
#include "comm/vote_rounds.hpp"

using distdl::comm::vote_rounds;
using distdl::comm::VoteRound;

namespace {

using Hosts = std::vector<std::int64_t>;

/// So many ranks follow each other on each host.
Hosts hosts_of(int ranks, int on_each) {
  Hosts hosts;
  for (int rank = 0; rank < ranks; ++rank) hosts.push_back(rank / on_each);
  return hosts;
}

struct Result {
  bool all_know_all = true;
  bool is_silent = true;             // no message is left
  std::size_t steps = 0;             // of messages that follow one upon another
  std::map<std::int64_t, int> sent;  // from each host to others
};

/// A vote: messages between two ranks arrive in the order in which they were sent.
Result voted(const Hosts& hosts) {
  const auto size = hosts.size();
  struct Message {
    std::set<int> known;
    std::size_t step;
  };
  struct Rank {
    std::vector<VoteRound> rounds;
    std::set<int> known;
    std::size_t round = 0, next = 0, step = 0;
    bool has_sent = false;
  };
  std::vector<Rank> ranks(size);
  std::map<std::pair<int, int>, std::deque<Message>> on_the_way;
  for (std::size_t r = 0; r < size; ++r) {
    ranks[r].rounds = vote_rounds(static_cast<int>(r), hosts);
    ranks[r].known = {static_cast<int>(r)};
  }
  Result result;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < size; ++r) {
      auto& [rounds, known, round, next, step, has_sent] = ranks[r];
      const auto me = static_cast<int>(r);
      while (round < rounds.size()) {
        if (!std::exchange(has_sent, true)) {
          moved = true;
          for (const auto to : rounds[round].to) {
            on_the_way[{me, to}].push_back({known, step + 1});
            const auto away = hosts[static_cast<std::size_t>(to)] != hosts[r];
            if (away) ++result.sent[hosts[r]];
          }
        }
        if (next == rounds[round].from.size()) {
          next = 0, has_sent = false, ++round;
        } else if (auto& arrived = on_the_way[{rounds[round].from[next], me}]; !arrived.empty()) {
          known.insert(arrived.front().known.begin(), arrived.front().known.end());
          step = std::max(step, arrived.front().step);
          arrived.pop_front();
          ++next;
        } else {
          break;
        }
        moved = true;
      }
    }
  }
  for (const auto& rank : ranks) {
    result.all_know_all &= rank.known.size() == size && rank.round == rank.rounds.size();
    result.steps = std::max(result.steps, rank.step);
  }
  for (const auto& [pair, messages] : on_the_way) result.is_silent &= messages.empty();
  return result;
}

TEST(every_rank_hears_of_all) {
  for (int ranks = 1; ranks <= 40; ++ranks) {
    for (int on_each = 1; on_each <= ranks; ++on_each) {
      const auto result = voted(hosts_of(ranks, on_each));
      CHECK(result.all_know_all);
      CHECK(result.is_silent);
    }
  }
}

TEST(also_where_hosts_are_uneven_and_ranks_in_any_order) {
  std::mt19937 random(7);
  for (int draw = 0; draw < 200; ++draw) {
    Hosts hosts(1 + random() % 100);
    const auto count = 1 + random() % hosts.size();
    for (auto& host : hosts) host = static_cast<std::int64_t>(random() % count) - 5;
    const auto result = voted(hosts);
    CHECK(result.all_know_all);
    CHECK(result.is_silent);
  }
}

TEST(steps_and_messages_between_hosts) {
  const auto steps = [](int ranks, int on_each) { return voted(hosts_of(ranks, on_each)).steps; };
  const auto sent = [](int ranks, int on_each) { return voted(hosts_of(ranks, on_each)).sent[0]; };
  CHECK_EQ(steps(8, 1), 1);
  CHECK_EQ(steps(8, 4), 1);
  CHECK_EQ(sent(8, 4), 16);
  CHECK_EQ(steps(64, 1), 2);
  CHECK_EQ(steps(16, 16), 4);
  CHECK_EQ(steps(64, 8), 1 + 1 + 1);  // to the first rank of the host, between hosts, and back
  CHECK_EQ(sent(64, 8), 7);
  CHECK_EQ(steps(320, 64), 2 + 1 + 2);
  CHECK_EQ(sent(320, 64), 4);
  CHECK_EQ(steps(320, 1), 3);
}

TEST(a_hundred_thousand_ranks_on_hosts_of_64) {
  const auto hosts = hosts_of(100'000, 64);
  for (const int rank : {0, 1, 63, 64, 99'999}) {
    std::size_t to = 0;
    for (const auto& round : vote_rounds(rank, hosts)) to += round.to.size();
    CHECK(to <= 8 + 7 * 4);
  }
}

}  // namespace
