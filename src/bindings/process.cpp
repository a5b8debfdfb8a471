// What belongs to this process rather than to an operator: the progress thread, statistics, memory.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "bindings/bindings.hpp"
#include "comm/communicator.hpp"
#include "comm/ending.hpp"
#include "comm/failure.hpp"
#include "comm/progress.hpp"
#include "comm/waiting.hpp"
#include "comm/watchdog.hpp"
#include "operators/deferred_errors.hpp"
#include "operators/memory.hpp"
#include "operators/staging.hpp"
#include "operators/traffic.hpp"

namespace distdl::bindings {

namespace {

/// A wait for other ranks in Python code, without this extension.
class WaitingInPython {
 public:
  explicit WaitingInPython(std::string what) : what_(std::move(what)) {}
  void enter() {
    operation_.emplace(what_);
    waiting_.emplace();
  }
  void exit() {
    waiting_.reset();
    operation_.reset();
  }

 private:
  std::string what_;
  std::optional<comm::Operation> operation_;
  std::optional<comm::Waiting> waiting_;
};

/// The Python object is never destroyed, for the interpreter may end earlier. It is not called once the locator was
/// taken back.
comm::Locator with_lock_of_python(py::object locate) {
  auto* const kept = new py::object(std::move(locate));
  return [kept](std::uint64_t thread) -> std::string {
    const py::gil_scoped_acquire acquire;
    try {
      return (*kept)(thread).cast<std::string>();
    } catch (const py::error_already_set&) {
      return "";
    }
  };
}

}  // namespace

void bind_process(py::module_& m) {
  m.def("progress_thread", &comm::progress_thread);
  m.def("set_progress_thread", &comm::set_progress_thread, py::arg("on"));
  m.def("set_patient", &comm::set_patient, py::arg("on"), "Whether this thread sleeps while it waits for other ranks.");
  m.def("finish_all", &comm::finish_all, py::call_guard<py::gil_scoped_release>(), "Waits for all that was started.");
  m.def("failure", &comm::failure, "What the first MPI call that failed here said; empty if none has.");
  m.def("take_deferred_error", &operators::take_deferred_error,
        "The deferred error that the next agreement would throw, which is then forgotten; empty if there is none.");

  m.def(
      "set_watchdog", [](double seconds, bool end) { comm::set_watchdog({seconds, end}); }, py::arg("seconds"),
      py::arg("end"));
  m.def("watchdog", [] { return std::make_pair(comm::watchdog().seconds, comm::watchdog().end); });
  m.def("set_debugging", &comm::set_debugging, py::arg("on"));
  py::enum_<comm::Hosts>(m, "Hosts")
      .value("names", comm::Hosts::names)
      .value("one", comm::Hosts::one)
      .value("several", comm::Hosts::several);
  m.def("set_hosts", &comm::set_hosts, py::arg("hosts"), "For communicators that are made from now on.");
  m.def(
      "set_locator",
      [](const py::object& locate) {
        auto locator = locate.is_none() ? comm::Locator() : with_lock_of_python(locate);
        const py::gil_scoped_release release;
        comm::set_locator(std::move(locator));
      },
      py::arg("locate"), "locate(thread) says where in the program a thread is; None: nobody does.");
  m.def("attend_finalize", &comm::attend_finalize, "Has MPI_Finalize begin with end_of_program().");
  m.def("end_of_program", &comm::end_of_program, py::call_guard<py::gil_scoped_release>(),
        "This rank makes no further call. Collective over all ranks with which it has made any.");
  py::class_<WaitingInPython>(m, "Waiting", "A block of code that waits for other ranks.")
      .def(py::init<std::string>(), py::arg("what"))
      .def("__enter__", &WaitingInPython::enter)
      .def("__exit__", [](WaitingInPython& self, const py::args&) { self.exit(); });

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
      .value("always", operators::Staging::always);
  m.def("set_staging", &operators::set_staging, py::arg("when"));
  m.def("staging", &operators::staging);

  m.def("set_pool_limit", &operators::set_pool_limit, py::arg("bytes"));
  m.def("pool_limit", &operators::pool_limit);
  m.def("pool_size", &operators::pool_size);
  m.def("empty_pool", &operators::empty_pool);
}

}  // namespace distdl::bindings
