// Which way the data of a collective takes, by its size and the number of ranks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace distdl::operators {

/// Whether messages of so many bytes between each two of so many ranks, from one rank to all others or from all to all,
/// are faster than MPI's collectives: they take half a round trip, and no rank waits until they are confirmed.
bool goes_directly(std::size_t bytes, int ranks);

/// The largest vectors of a pair of ranks, in bytes, that are added up faster on each rank that wants the sum than in
/// parts, which would have to come back from the other rank (measured on two cores that share memory).
inline constexpr std::int64_t kMaxPairBytes = 2 << 20;

/// The ways to add up one vector from each contributor.
enum class SumRoute {
  direct,  // contributors send their vectors to the receivers, which add them up: see DirectSum
  twice,   // two ranks exchange their vectors, and both add them up: see add_twice()
  blocks,  // each contributor adds up one part of the vectors: see BlockSum
  mpi,     // MPI's reductions
};

struct SumSize {
  std::int64_t bytes = 0;            // of one vector, in the dtype in which values are added up
  std::int64_t bytes_to_a_rank = 0;  // the most that a contributor sends to one receiver
  int ranks = 0;                     // that contribute or receive
  int contributors = 0;
  bool all_receive = false;  // each rank contributes, and receives the whole sum
};

/// The fastest way. All ranks of a sum have to pass the same size.
SumRoute route_of(const SumSize& size);

}  // namespace distdl::operators
