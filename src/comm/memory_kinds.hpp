// The memory that the MPI library takes.
#pragma once

#include <string>

namespace distdl::comm {

/// The library's list of the kinds of memory that it takes, such as "mpi,system,cuda"; empty if it has none. MPI 4.1
/// defines it, in section 12.4.3.
std::string kinds_of_memory();

}  // namespace distdl::comm
