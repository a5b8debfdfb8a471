// What it costs one worker to plan an exchange in a partition of a million: see README.md. Neither MPI nor torch.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "allocations.hpp"
#include "base/text.hpp"
#include "geometry/exchange_plan.hpp"

using namespace distdl::geometry;
using distdl::base::text;

namespace {

constexpr int WORKERS_PLANNED_FOR = 1000;  // evenly spread over the partition
constexpr double MOST_MICROSECONDS = 1000;
constexpr double MOST_BYTES_PER_PEER = 1024;

struct Exchange {
  std::string name;
  std::vector<Blocks> owned;
  std::vector<Blocks> targets;
  std::int64_t halo;
};

struct Figures {
  double microseconds;  // median
  std::int64_t peers;   // of the worker with the most, the following too
  double bytes_per_peer;
};

/// About 4 elements for each of `count` workers: balanced, or sizes from 1 to 7.
Blocks blocks_of_four(std::int64_t count, bool balanced) {
  if (balanced) return Blocks::balanced(4 * count + 1, count);
  Shape sizes;
  for (std::int64_t i = 0; i < count; ++i) sizes.push_back(1 + 3 * i % 7);
  return Blocks::of_sizes(sizes);
}

std::vector<Exchange> exchanges(const Shape& from, const Shape& to, bool balanced) {
  Exchange repartition{"repartition to " + text(to), {}, {}, 0}, halo{"halo exchange", {}, {}, 1};
  for (std::size_t d = 0; d < from.size(); ++d) {
    const auto owned = blocks_of_four(from[d], balanced);
    repartition.owned.push_back(owned);
    repartition.targets.push_back(Blocks::balanced(owned.extent(), to[d]));
    halo.owned.push_back(owned);
    halo.targets.push_back(owned);
  }
  return {repartition, halo};
}

/// Everything from the blocks to the plan, for many workers one after the other.
Figures plan(const Exchange& exchange, std::int64_t workers) {
  std::vector<double> times;
  Figures figures{0, 0, 0};
  const std::vector<bool> periodic(exchange.owned.size(), true);
  for (int i = 0; i < WORKERS_PLANNED_FOR; ++i) {
    const auto worker = i * workers / WORKERS_PLANNED_FOR;
    const auto before = allocations::bytes;
    const auto start = std::chrono::steady_clock::now();
    Wanted wanted;
    for (const auto& blocks : exchange.targets) {
      const auto halo = exchange.halo;
      wanted.bounds.push_back(
          {blocks.count(), [blocks, halo](std::int64_t k) { return blocks.at(k).grown(halo, halo); }});
    }
    const auto made = plan_exchange(exchange.owned, wanted, worker, worker, periodic);
    const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
    const auto bytes = allocations::bytes - before;
    times.push_back(elapsed.count());
    const auto peers = std::ssize(made.sends) + std::ssize(made.receives);
    figures.peers = std::max<std::int64_t>(figures.peers, peers);
    figures.bytes_per_peer = std::max(
        figures.bytes_per_peer, static_cast<double>(bytes) / static_cast<double>(std::max(peers, std::ptrdiff_t{1})));
  }
  std::ranges::nth_element(times, times.begin() + WORKERS_PLANNED_FOR / 2);
  figures.microseconds = times[WORKERS_PLANNED_FOR / 2];
  return figures;
}

}  // namespace

int main() {
  const std::vector<std::pair<Shape, Shape>> partitions{
      {{16, 16}, {8, 32}}, {{1024, 1024}, {512, 2048}}, {{6, 6, 6}, {12, 3, 6}}, {{100, 100, 100}, {200, 50, 100}}};
  std::printf("%-20s %-11s %-34s %12s %6s %10s\n", "partition", "blocks", "plan of one worker", "microseconds", "peers",
              "bytes/peer");
  bool all_met = true;
  for (const auto& [from, to] : partitions) {
    for (const bool balanced : {true, false}) {
      for (const auto& exchange : exchanges(from, to, balanced)) {
        const auto [microseconds, peers, bytes] = plan(exchange, volume(from));
        const bool met = microseconds <= MOST_MICROSECONDS && bytes <= MOST_BYTES_PER_PEER;
        all_met = all_met && met;
        std::printf("%-20s %-11s %-34s %12.1f %6lld %10.0f%s\n", text(from).c_str(),
                    balanced ? "balanced" : "unbalanced", exchange.name.c_str(), microseconds,
                    static_cast<long long>(peers), bytes, met ? "" : "  not met");
      }
    }
  }
  std::printf("goals: at most %.0f microseconds, the median of %d workers, and %.0f bytes allocated per peer: %s\n",
              MOST_MICROSECONDS, WORKERS_PLANNED_FOR, MOST_BYTES_PER_PEER, all_met ? "met" : "not met");
}
