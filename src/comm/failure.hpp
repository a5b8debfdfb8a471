// What follows from an MPI call that failed.
#pragma once

#include <string>

#include "comm/error.hpp"

namespace distdl::comm {

/// Throws `error`; the first error is final. Other ranks may wait for ever for the call that failed here, and this rank
/// cannot know which ones. So it communicates no more: every later use of a communicator throws the first error again,
/// and the end of the program is to end the job.
[[noreturn]] void fail(const MPIError& error);

/// What the first error said; empty if there was none.
std::string failure();

/// Throws the first error again, if there was one.
void refuse_after_failure();

/// Has `thrower` called in place of throwing an MPIError, for callers that need an exception of another type.
void throw_errors_by(void (*thrower)(const MPIError&));

}  // namespace distdl::comm
