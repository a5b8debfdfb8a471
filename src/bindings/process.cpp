// Functions of this process rather than of an operator: the progress thread, statistics, memory.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>

#include "agreement/deferred_errors.hpp"
#include "agreement/traffic.hpp"
#include "bindings/bindings.hpp"
#include "comm/communicator.hpp"
#include "comm/ending.hpp"
#include "comm/failure.hpp"
#include "comm/memory_kinds.hpp"
#include "comm/progress.hpp"
#include "comm/waiting.hpp"
#include "comm/watchdog.hpp"
#include "kernels/memory.hpp"
#include "kernels/staging.hpp"

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
  m.def("take_deferred_error", &agreement::take_deferred_error,
        "The deferred error that the next agreement would throw, which is then forgotten; empty if there is none.");

  m.def(
      "set_watchdog", [](double seconds, bool end) { comm::set_watchdog({seconds, end}); }, py::arg("seconds"),
      py::arg("end"));
  m.def("watchdog", [] { return std::make_pair(comm::watchdog().seconds, comm::watchdog().end); });
  m.def("set_debugging", &comm::set_debugging, py::arg("on"));
  m.def("set_hosts", &comm::set_hosts, py::arg("ranks_on_each"), "For communicators that are made from now on.");
  m.attr("HOSTS_BY_NAME") = static_cast<int>(comm::kHostsByName);
  m.attr("SEVERAL_HOSTS") = static_cast<int>(comm::kSeveralHosts);
  m.attr("ONE_HOST") = static_cast<int>(comm::kOneHost);
  m.def(
      "set_locator",
      [](const py::object& locate) {
        auto locator = locate.is_none() ? comm::Locator() : with_lock_of_python(locate);
        const py::gil_scoped_release release;
        comm::set_locator(std::move(locator));
      },
      py::arg("locate"), "locate(thread) returns where in the program a thread is; None: unknown.");
  m.def("attend_finalize", &comm::attend_finalize, "Has MPI_Finalize begin with end_of_program().");
  m.def("end_of_program", &comm::end_of_program, py::call_guard<py::gil_scoped_release>(),
        "This rank makes no further call. Collective over all ranks with which it has made any.");
  m.def("end_of_cell", &comm::end_of_cell, py::arg("what"), py::call_guard<py::gil_scoped_release>(),
        "This rank makes no call until all ranks with which it has made any are here. Collective over them.");
  py::class_<WaitingInPython>(m, "Waiting", "A block of code that waits for other ranks.")
      .def(py::init<std::string>(), py::arg("what"))
      .def("__enter__", &WaitingInPython::enter)
      .def("__exit__", [](WaitingInPython& self, const py::args&) { self.exit(); });

  py::class_<agreement::Statistics>(m, "Statistics", "The calls of operators of one name on this rank.")
      .def_readonly("calls", &agreement::Statistics::calls)
      .def_readonly("messages", &agreement::Statistics::messages)
      .def_readonly("bytes_sent", &agreement::Statistics::bytes_sent)
      .def_readonly("bytes_received", &agreement::Statistics::bytes_received)
      .def_readonly("seconds_waited", &agreement::Statistics::seconds_waited);
  m.def("statistics", &agreement::statistics);
  m.def("reset_statistics", &agreement::reset_statistics);

  py::enum_<kernels::Staging>(m, "Staging")
      .value("where_needed", kernels::Staging::where_needed)
      .value("always", kernels::Staging::always);
  m.def("set_staging", &kernels::set_staging, py::arg("when"));
  m.def("staging", &kernels::staging);
  m.def("kinds_of_memory", &comm::kinds_of_memory);
  m.def("set_direct", &kernels::set_direct, py::arg("on"));
  m.def("direct", &kernels::direct);

  kernels::allocate_all_tensors();
  m.def(
      "set_pool_limit",
      [](std::optional<std::size_t> bytes) { kernels::pool().set_limit(bytes.value_or(base::PageHeap::kNoLimit)); },
      py::arg("bytes"));
  m.def("pool_limit", [] {
    const auto limit = kernels::pool().limit();
    return limit == base::PageHeap::kNoLimit ? std::nullopt : std::optional(limit);
  });
  m.def("pool_size", [] { return kernels::pool().unused(); });
  m.def("pool_used", [] { return kernels::pool().used(); });
  m.def("empty_pool", [] { kernels::pool().release(); });
}

}  // namespace distdl::bindings
