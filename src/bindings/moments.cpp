// Moments of channels, for layers written in Python.
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.hpp"
#include "operators/channel_moments.hpp"

namespace distdl::bindings {

void bind_moments(py::module_& m) {
  m.def("channel_moments", &operators::channel_moments, py::arg("x"), py::call_guard<py::gil_scoped_release>(),
        "Mean and sum of squared deviations of each channel of (N, C, *others), in double precision.");
  m.def("add_to_channels", &operators::add_to_channels, py::arg("gradient"), py::arg("x"), py::arg("pivot"),
        py::arg("slope"), py::arg("constant"), py::call_guard<py::gil_scoped_release>(),
        "gradient += (x - pivot) * slope + constant, where the latter three have a value for each channel.");
}

}  // namespace distdl::bindings
