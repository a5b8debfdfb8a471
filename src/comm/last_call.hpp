// How ranks learn that another rank makes no further call, in place of waiting for it for ever.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace distdl::comm {

/// Tells the other ranks that this one frees communicators: ranks that wait for it in a vote there throw. Returns when
/// all ranks of each communicator have come to its end, or to their own. Collective, like MPI_Comm_free.
void agree_on_freeing(std::vector<CommunicatorPtr> communicators) noexcept;

/// Tells the other ranks that this one makes no further call: ranks that wait for it in a vote throw. Returns when all
/// ranks have come to their end. Collective, over the ranks of every communicator.
void agree_on_end();

/// The same for a rank that makes further calls as soon as all ranks have come here, or to their end. The ranks that
/// throw have this text in their message. Collective, over the ranks of every communicator.
void agree_on_pause(const std::string& what);

}  // namespace distdl::comm
