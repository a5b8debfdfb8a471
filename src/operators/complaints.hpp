// Mistakes of this rank that are found where it cannot throw on all ranks: the next agreement does.
#pragma once

#include <string>

namespace distdl::operators {

/// Has the next agreement that this rank takes part in throw, on all its ranks.
void complain(std::string problem);

/// The first complaint that nobody took yet, which is then forgotten; empty if there is none.
std::string take_complaint();

}  // namespace distdl::operators
