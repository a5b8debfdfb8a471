// Buffered sends: small messages that are copied, so that the call that sends them returns before they are confirmed.
//
// A network reports a message as sent only when the receiver has confirmed it. A sender that waited for this would add
// half a round trip to each call, although all that it receives itself has arrived long before.
#pragma once

#include <cstddef>

#include "comm/communicator.hpp"

namespace distdl::comm {

/// The largest message that is sent this way, in bytes. Most MPI libraries send messages of this size at once, or let
/// the receiver fetch them, and the copy takes less time than sending. Where a library does neither (Open MPI on one
/// host where processes may not read each other's memory, from 4 KiB; MPICH whose cells of shared memory are all in
/// use), the message leaves in the sender's next call of MPI, and a receiver that comes late waits for that.
inline constexpr std::size_t kMaxBuffered = 8 << 10;

/// Sends a copy of these bytes. Waits for nothing, unless very many such messages are under way.
void send_buffered(const void* bytes, std::size_t size, int rank, int tag, const Communicator& communicator);

/// Waits until the buffered messages of all threads have been sent.
void finish_buffered_sends();

}  // namespace distdl::comm
