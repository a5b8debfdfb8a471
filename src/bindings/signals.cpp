// Signals, Ctrl-C above all.
#include "comm/signals.hpp"

#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/graph_task.h>

#include "agreement/layer_call.hpp"
#include "bindings/bindings.hpp"

namespace distdl::bindings {

void begin_call() {
  if (!comm::on_main_thread() || agreement::in_layer_call()) return;
  if (torch::autograd::get_current_graph_task_id() != -1) return;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  if (!comm::take_interrupt()) return;
  PyErr_SetNone(PyExc_KeyboardInterrupt);
  throw py::error_already_set();
}

void bind_signals(py::module_& m) {
  py::class_<comm::HeldSignals>(m, "HeldSignals", "Signals wait for their handlers for as long as it lives.")
      .def(py::init());
  py::enum_<comm::Interrupt>(m, "Interrupt", "What becomes of an interrupt.")
      .value("first", comm::Interrupt::first)
      .value("same", comm::Interrupt::same)
      .value("again", comm::Interrupt::again);
  m.def("request_interrupt", &comm::request_interrupt, "Asks that all ranks of the job be interrupted.");
  m.def("interrupt_requested", &comm::interrupt_requested, "Whether the ranks have not heard of an interrupt yet.");
  m.def("main_thread_waits", &comm::main_thread_waits, "Whether the main thread waits for other ranks.");
  m.def("watch_interrupts", &comm::watch_interrupts,
        "Lets a second interrupt in one wait for other ranks end the process. Called by the main thread.");
}

}  // namespace distdl::bindings
