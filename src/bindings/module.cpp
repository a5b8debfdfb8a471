// The Python module distdl._core: the only place that knows pybind11 and mpi4py.
#include <mpi4py/mpi4py.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <string_view>

#include "autograd/apply.hpp"
#include "bindings/bindings.hpp"
#include "comm/error.hpp"
#include "comm/failure.hpp"

namespace distdl::bindings {

namespace {

bool mpi_initialized() {
  int initialized = 0;
  comm::check(MPI_Initialized(&initialized), "MPI_Initialized");
  return initialized != 0;
}

std::string mpi_library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  comm::check(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  return {text, static_cast<std::size_t>(length)};
}

PyObject* mpi_error_type = nullptr;  // lives as long as the process

/// An MPIError. torch shows Python whatever a backward pass throws as a RuntimeError, unless it says what else it is.
struct MPIError : torch::PyTorchError {
  using PyTorchError::PyTorchError;
  PyObject* python_type() override { return mpi_error_type; }
};

/// The code at the end of an MPIError's message: from a backward pass, torch hands on nothing but the message.
int code_of(const py::object& error) {
  constexpr std::string_view before = "(code ";
  const auto text = py::str(error).cast<std::string>();
  const auto start = text.rfind(before);
  if (start == std::string::npos) throw py::attribute_error("this MPIError has no code");
  return std::stoi(text.substr(start + before.size()));
}

void set_error_of_all(const base::ThrownByAll& thrown) {
  const auto& error = dynamic_cast<const std::exception&>(thrown);
  auto* const kind = dynamic_cast<const base::TypeError*>(&error) != nullptr         ? PyExc_TypeError
                     : dynamic_cast<const std::invalid_argument*>(&error) != nullptr ? PyExc_ValueError
                                                                                     : PyExc_RuntimeError;
  const auto made = py::reinterpret_borrow<py::object>(kind)(error.what());
  made.attr("is_shown_by_another") = thrown.shown_by_another();
  PyErr_SetObject(kind, made.ptr());
}

/// In a backward pass, torch hands on the type and the message of an exception alone, unless it is Python's.
void throw_for_backward(const base::ThrownByAll& thrown) {
  if (torch::autograd::get_current_graph_task_id() == -1) return;
  const py::gil_scoped_acquire gil;
  set_error_of_all(thrown);
  python_error error;
  error.persist();
  throw error;
}

void bind_errors(py::module_& m) {
  py::exception<comm::MPIError> type(m, "MPIError", PyExc_RuntimeError);
  type.attr("__module__") = "distdl";
  const auto property = py::module_::import("builtins").attr("property");
  type.attr("code") = property(py::cpp_function(&code_of));
  type.attr("error_class") =
      property(py::cpp_function([](const py::object& error) { return comm::MPIError::class_of(code_of(error)); }));
  mpi_error_type = type.release().ptr();
  comm::throw_errors_by([](const comm::MPIError& error) { throw MPIError(error.what()); });
  base::before_all_throw = &throw_for_backward;
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (MPIError& error) {
      PyErr_SetString(error.python_type(), error.what());
    } catch (const base::ThrownByAll& error) {
      set_error_of_all(error);
    } catch (const base::TypeError& error) {
      PyErr_SetString(PyExc_TypeError, error.what());
    } catch (python_error& error) {  // from a hook that torch called, such as the one that ends the second forward pass
                                     // of checkpointing
      error.restore();
    }
  });
}

}  // namespace

MPI_Comm communicator_handle(const py::object& comm) {
  if (comm.is_none()) return MPI_COMM_NULL;
  const MPI_Comm* handle = PyMPIComm_Get(comm.ptr());
  if (handle == nullptr) throw py::error_already_set();
  return *handle;
}

py::object communicator_object(MPI_Comm handle) { return py::reinterpret_steal<py::object>(PyMPIComm_New(handle)); }

PYBIND11_MODULE(_core, m) {
  if (import_mpi4py() < 0) throw py::error_already_set();
  m.doc() = "distdl's C++ core: partitions' geometry, communicators and the primitives.";
  m.def("mpi_initialized", &mpi_initialized, "Whether the MPI library that this extension uses was initialized.");
  m.def("mpi_library_version", &mpi_library_version, "The name and version of the MPI library that is in use.");
  bind_errors(m);
  bind_geometry(m);
  bind_agreement(m);
  bind_primitives(m);
  bind_process(m);
  bind_signals(m);
  bind_random(m);
  bind_holder(m);
  bind_moments(m);
  bind_softmax(m);
  bind_without_values(m);
}

}  // namespace distdl::bindings
