// Moments of channels, for layers written in Python.
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.hpp"
#include "kernels/channel_moments.hpp"

namespace distdl::bindings {

void bind_moments(py::module_& m) {
  m.def("channel_moments", &kernels::channel_moments, py::arg("x"), py::call_guard<py::gil_scoped_release>(),
        "Mean and sum of squared deviations of each channel of (N, C, *others), in double precision.");
  m.def("combine_channels", &kernels::combine_channels, py::arg("to"), py::arg("gradient"), py::arg("scale"),
        py::arg("x"), py::arg("pivot"), py::arg("slope"), py::arg("constant"), py::call_guard<py::gil_scoped_release>(),
        "to = gradient * scale + (x - pivot) * slope + constant; all but the first two and x are of the channels.");
}

}  // namespace distdl::bindings
