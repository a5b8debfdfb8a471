// Declarations that the binding files share.
#pragma once

#include <mpi.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "geometry/interval.hpp"

namespace distdl::bindings {

namespace py = pybind11;

/// The MPI handle behind an mpi4py communicator; MPI_COMM_NULL for None. Throws Python's TypeError for anything else.
MPI_Comm communicator_handle(const py::object& comm);

/// The mpi4py communicator of a handle that stays ours to free.
py::object communicator_object(MPI_Comm handle);

/// Throws what signals have to say before a call begins in which ranks work together: what the handlers of this rank
/// raise, and KeyboardInterrupt where all ranks of the job have heard of an interrupt. Within the call of a layer, and
/// in backward passes, it does nothing.
void begin_call();

/// (start, stop), as Python has intervals.
using Pair = std::pair<std::int64_t, std::int64_t>;
using Pairs = std::vector<Pair>;

/// Intervals by dimension, or one after the other.
inline geometry::Box box_of(const Pairs& pairs) {
  geometry::Box box;
  for (const auto& [start, stop] : pairs) box.push_back({start, stop});
  return box;
}

/// __deepcopy__ of what never changes.
inline py::object shared_by_copies(py::object self, const py::dict& /*memo*/) { return self; }

void bind_geometry(py::module_& m);
void bind_agreement(py::module_& m);
void bind_primitives(py::module_& m);
void bind_process(py::module_& m);
void bind_signals(py::module_& m);
void bind_random(py::module_& m);
void bind_holder(py::module_& m);
void bind_moments(py::module_& m);
void bind_softmax(py::module_& m);
void bind_without_values(py::module_& m);

}  // namespace distdl::bindings
