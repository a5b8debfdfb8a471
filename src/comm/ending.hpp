// The end of the program, before this process leaves the others.
#pragma once

#include <string>

namespace distdl::comm {

/// Finishes the work that is under way, and tells the ranks that wait for this one that it makes no further call: see
/// agree_on_end. After this the watchdog is silent. A second call does nothing.
void end_of_program() noexcept;

/// The same at the end of a notebook's cell, after which the program goes on: see agree_on_pause.
void end_of_cell(const std::string& what);

/// Has MPI_Finalize begin with end_of_program().
void attend_finalize();

}  // namespace distdl::comm
