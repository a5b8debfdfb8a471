// Random numbers by global index, for layers written in Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.hpp"
#include "kernels/random_fill.hpp"

namespace distdl::bindings {

void bind_random(py::module_& m) {
  m.def(
      "fill_choice",
      [](const at::Tensor& block, std::uint64_t key, const geometry::Shape& shape, const Pairs& intervals,
         std::uint64_t threshold, double below,
         double other) { kernels::fill_choice(block, key, shape, box_of(intervals), threshold, below, other); },
      py::arg("block"), py::arg("key"), py::arg("shape"), py::arg("intervals"), py::arg("threshold"), py::arg("below"),
      py::arg("other"), py::call_guard<py::gil_scoped_release>(),
      "Fills a block of a random tensor: `below` where the element's word, of 2**32, is less than the threshold.");
  m.def(
      "fill_uniform",
      [](const at::Tensor& block, std::uint64_t key, const geometry::Shape& shape, const Pairs& intervals, double lower,
         double step) { kernels::fill_uniform(block, key, shape, box_of(intervals), lower, step); },
      py::arg("block"), py::arg("key"), py::arg("shape"), py::arg("intervals"), py::arg("lower"), py::arg("step"),
      py::call_guard<py::gil_scoped_release>(), "Fills a block of a random tensor with lower + word * step.");
}

}  // namespace distdl::bindings
