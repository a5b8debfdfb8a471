// What this process does before it leaves the others.
#pragma once

namespace distdl::comm {

/// Lets nothing be under way, and tells the ranks that wait for this one that it makes no further call: see
/// agree_on_end. After this the watchdog is silent. Only the first call does anything.
void end_of_program() noexcept;

/// Has MPI_Finalize begin with this.
void attend_finalize();

}  // namespace distdl::comm
