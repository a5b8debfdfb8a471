#include "bindings/input.hpp"

#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

namespace distdl::bindings {

namespace {

using agreement::Input;

std::string type_name(py::handle x) { return py::str(py::type::handle_of(x).attr("__name__")).cast<std::string>(); }

/// The error of an object whose class wraps other tensors, so that it has no bytes that MPI could send; empty if there
/// is none. Also of a class with a __torch_dispatch__, whose errors in the midst of a call would be raised on this rank
/// alone.
std::string error_of_class(py::handle x) {
  const bool wraps = py::hasattr(x, "fake_mode") || py::hasattr(x, "__tensor_flatten__");
  const auto torch = py::module_::import("torch");
  if (!wraps) {
    const auto plain = torch.attr("Tensor").attr("__torch_dispatch__");
    if (py::getattr(py::type::handle_of(x), "__torch_dispatch__", plain).is(plain)) return {};
  }
  // Nested tensors and recorders are refused in the call.
  if (agreement::is_recorded() || (wraps && !py::getattr(x, "layout", py::none()).is(torch.attr("strided")))) return {};
  const std::string why = wraps ? "no memory of its own" : "a __torch_dispatch__ of its own";
  return "is a " + type_name(x) + ", which has " + why + "; it has to be a plain torch.Tensor";
}

Input input_of_error(py::handle error) {
  using Error = agreement::Structure::Error;
  const auto is = [&](PyObject* type) { return py::isinstance(error, py::reinterpret_borrow<py::object>(type)); };
  auto text = py::str(error).cast<std::string>();
  if (text.empty()) text = type_name(error);
  const auto kind = is(PyExc_ValueError) ? Error::value : is(PyExc_RuntimeError) ? Error::state : Error::type;
  return {at::Tensor(), std::move(text), kind};
}

}  // namespace

Input input_of(py::handle x) {
  if (THPVariable_CheckExact(x.ptr())) return {THPVariable_Unpack(x.ptr()), ""};
  if (PyExceptionInstance_Check(x.ptr()) != 0) return input_of_error(x);
  auto error = error_of_class(x);
  if (THPVariable_Check(x.ptr())) return {THPVariable_Unpack(x.ptr()), std::move(error)};
  if (error.empty()) error = "is of type " + type_name(x) + "; it has to be a torch.Tensor";
  return {at::Tensor(), std::move(error)};
}

}  // namespace distdl::bindings
