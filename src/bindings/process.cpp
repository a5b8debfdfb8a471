// What belongs to this process rather than to an operator: the progress thread and the pool of memory.
#include <pybind11/pybind11.h>

#include "bindings/bindings.hpp"
#include "comm/progress.hpp"
#include "operators/memory.hpp"
#include "operators/structure.hpp"

namespace distdl::bindings {

void bind_process(py::module_& m) {
  m.def("progress_thread", &comm::progress_thread);
  m.def("set_progress_thread", &comm::set_progress_thread, py::arg("on"));
  m.def("finish_all", &comm::finish_all, py::call_guard<py::gil_scoped_release>(), "Waits for all that was started.");
  m.def("take_complaint", &operators::take_complaint, "What the next agreement would throw; empty if it would not.");

  m.def("set_pool_limit", &operators::set_pool_limit, py::arg("bytes"));
  m.def("pool_limit", &operators::pool_limit);
  m.def("pool_size", &operators::pool_size);
  m.def("empty_pool", &operators::empty_pool);
}

}  // namespace distdl::bindings
