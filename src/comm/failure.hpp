// What follows from an MPI call that failed.
#pragma once

#include <string>

#include "comm/error.hpp"

namespace distdl::comm {

/// Throws `error`, the first one for good. The other ranks may wait for ever for what did not happen here, and nobody
/// knows which ones, nor for what. So this rank communicates no more: whatever uses a communicator throws the first
/// error again, and the end of the program is to end the job.
[[noreturn]] void fail(const MPIError& error);

/// What the first error said; empty if there was none.
std::string failure();

/// Throws the first error again, if there was one.
void refuse_after_failure();

/// For those who cannot use an MPIError: throws in its place what `thrower` throws.
void throw_errors_by(void (*thrower)(const MPIError&));

}  // namespace distdl::comm
