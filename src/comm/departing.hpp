// Small messages that are still on their way when the call that sent them returns.
//
// Networks that confirm messages call a message sent only when the confirmation has come back. A sender that waited for
// that would add half a round trip to each call, though what it receives itself has long arrived.
#pragma once

#include <cstddef>

#include "comm/communicator.hpp"

namespace distdl::comm {

/// Messages up to so many bytes travel this way. Most MPI libraries send messages of this size at once, or let the
/// receiver fetch them, and the copy takes less time than sending. Where a library does neither (Open MPI on one host
/// where processes may not read each other's memory, from 4 KiB; MPICH whose cells of shared memory are all in use),
/// the message leaves in the sender's next call of MPI, and a receiver that comes late waits for that.
inline constexpr std::size_t kLargestDeparting = 8 << 10;

/// Sends a copy of these bytes. Waits for nothing, unless very many such messages are on their way.
void depart(const void* bytes, std::size_t size, int rank, int tag, const Communicator& communicator);

/// Waits until all of these messages have been sent, by any thread.
void finish_departures();

}  // namespace distdl::comm
