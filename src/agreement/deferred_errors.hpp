// Mistakes of this rank that are found where it cannot throw on all ranks: the next agreement throws them.
#pragma once

#include <string>

namespace distdl::agreement {

/// Has the next agreement that this rank takes part in throw, on all its ranks.
void defer_error(std::string problem);

/// The first deferred error, which is then forgotten; empty if there is none.
std::string take_deferred_error();

}  // namespace distdl::agreement
