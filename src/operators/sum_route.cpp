#include "operators/sum_route.hpp"

#include "comm/buffered_send.hpp"

namespace distdl::operators {

namespace {

constexpr int kMaxDirectRanks = 8;                // that exchange messages directly
constexpr std::int64_t kMinPartBytes = 64 << 10;  // of a part that is worth messages of its own

}  // namespace

bool goes_directly(std::size_t bytes, int ranks) { return bytes <= comm::kMaxBuffered && ranks <= kMaxDirectRanks; }

SumRoute route_of(const SumSize& size) {
  if (goes_directly(static_cast<std::size_t>(size.bytes_to_a_rank), size.ranks)) return SumRoute::direct;
  if (size.all_receive && size.ranks == 2 && size.bytes <= kMaxPairBytes) return SumRoute::twice;
  const bool large = size.contributors > 0 && size.bytes / size.contributors >= kMinPartBytes;
  return large ? SumRoute::blocks : SumRoute::mpi;
}

}  // namespace distdl::operators
