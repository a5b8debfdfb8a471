// What belongs to this process rather than to an operator: the progress thread, statistics, memory.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "comm/failure.hpp"
#include "comm/progress.hpp"
#include "operators/memory.hpp"
#include "operators/staging.hpp"
#include "operators/structure.hpp"
#include "operators/traffic.hpp"

namespace distdl::bindings {

void bind_process(py::module_& m) {
  m.def("progress_thread", &comm::progress_thread);
  m.def("set_progress_thread", &comm::set_progress_thread, py::arg("on"));
  m.def("finish_all", &comm::finish_all, py::call_guard<py::gil_scoped_release>(), "Waits for all that was started.");
  m.def("failure", &comm::failure, "What the first MPI call that failed here said; empty if none has.");
  m.def("take_complaint", &operators::take_complaint, "What the next agreement would throw; empty if it would not.");

  py::class_<operators::Statistics>(m, "Statistics", "The calls of operators of one name on this rank.")
      .def_readonly("calls", &operators::Statistics::calls)
      .def_readonly("messages", &operators::Statistics::messages)
      .def_readonly("bytes_sent", &operators::Statistics::bytes_sent)
      .def_readonly("bytes_received", &operators::Statistics::bytes_received)
      .def_readonly("seconds_waited", &operators::Statistics::seconds_waited);
  m.def("statistics", &operators::statistics);
  m.def("reset_statistics", &operators::reset_statistics);

  py::enum_<operators::Staging>(m, "Staging")
      .value("where_needed", operators::Staging::where_needed)
      .value("never", operators::Staging::never)
      .value("always", operators::Staging::always);
  m.def("set_staging", &operators::set_staging, py::arg("when"));
  m.def("staging", &operators::staging);

  m.def("set_pool_limit", &operators::set_pool_limit, py::arg("bytes"));
  m.def("pool_limit", &operators::pool_limit);
  m.def("pool_size", &operators::pool_size);
  m.def("empty_pool", &operators::empty_pool);
}

}  // namespace distdl::bindings
