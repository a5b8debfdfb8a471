// Tensors without values, for the recorder.
#include "autograd/without_values.hpp"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.hpp"

namespace distdl::bindings {

void bind_without_values(py::module_& m) {
  m.def("without_values", &autograd::without_values, py::arg("shape"), py::arg("strides"), py::arg("dtype"),
        "A tensor on the device meta, which no mode of torch sees being made.");
  m.def("take_for_result", &autograd::take_for_result, py::arg("tensor"),
        "Lets autograd take a tensor for the result of a call, without a backward pass.");
}

}  // namespace distdl::bindings
