// Consequences of an MPI call that failed, and of an operator's call that ended in its middle.
#pragma once

#include <string>

#include "comm/error.hpp"

namespace distdl::comm {

/// Throws `error`; the first error is final. Other ranks may wait for ever for the call that failed here, and this rank
/// cannot know which of them do. So it communicates no more: every later use of a communicator throws the first error
/// again, and the end of the program is to end the job.
[[noreturn]] void fail(const MPIError& error);

/// The message of the first error; empty if there was none.
std::string failure();

/// Throws the first error again, if there was one.
void refuse_after_failure();

/// Notes that a call ended with an exception on this rank after its ranks had agreed on it. Messages of it may be left,
/// and would be taken for messages of later calls. So from now on all votes of this rank throw, on all of their ranks.
void fall_out_of_step(const std::string& why);

/// The first reason that was noted; empty if there was none.
std::string out_of_step();

/// Has `thrower` called in place of throwing an MPIError, for callers that need an exception of another type.
void throw_errors_by(void (*thrower)(const MPIError&));

}  // namespace distdl::comm
