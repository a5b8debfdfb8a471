// Softmax over split axes, and losses.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "agreement/layer_agreement.hpp"
#include "autograd/loss.hpp"
#include "autograd/split_softmax.hpp"
#include "bindings/bindings.hpp"
#include "kernels/block_softmax.hpp"
#include "kernels/class_indices.hpp"

namespace distdl::bindings {

using agreement::LayerAgreement;
using autograd::AlongAxis;

void bind_softmax(py::module_& m) {
  using Primitive = std::shared_ptr<operators::Primitive>;
  py::class_<AlongAxis>(m, "AlongAxis", "Operators over the workers along an axis.")
      .def(py::init([](std::int64_t axis, Primitive gather, Primitive sum) {
             return AlongAxis{axis, std::move(gather), std::move(sum)};
           }),
           py::arg("axis"), py::arg("gather"), py::arg("sum"))
      .def("__deepcopy__", &shared_by_copies, py::arg("memo"), "A copied layer shares it.")
      .def(
          "log_sum_exp",
          [](const AlongAxis& self, const at::Tensor& x) {
            auto [largest, log_sum] = autograd::log_sum_exp(x, self);
            return std::make_pair(largest, log_sum);
          },
          py::arg("x"), py::call_guard<py::gil_scoped_release>(),
          "(the largest element, the log-sum-exp relative to it). Collective.")
      .def(
          "softmax",
          [](const AlongAxis& self, const at::Tensor& x, bool logarithm, const LayerAgreement* layer) {
            const auto kind = logarithm ? kernels::Softmax::logarithm : kernels::Softmax::powers;
            return autograd::softmax(kind, x, self, layer == nullptr ? agreement::Derivatives{} : layer->derivatives());
          },
          py::arg("x"), py::arg("logarithm"), py::arg("agreement"), py::call_guard<py::gil_scoped_release>(),
          "The softmax of the whole tensor, or its logarithm. Collective.");
  m.def("scaled_powers", &kernels::scaled_powers, py::arg("x"), py::arg("largest"), py::arg("scale"), py::arg("axis"),
        py::call_guard<py::gil_scoped_release>(), "exp(x - largest) * scale, without derivatives.");
  m.def(
      "counted_classes",
      [](const at::Tensor& target, std::optional<std::int64_t> ignored) {
        const auto [lowest, highest, count] = kernels::counted_classes(target, ignored);
        return std::make_tuple(lowest, highest, count);
      },
      py::arg("target"), py::arg("ignored"), py::call_guard<py::gil_scoped_release>(),
      "(lowest, highest, number) of the classes that are not ignored.");
  m.def("loss_of_parts", &autograd::loss_of_parts, py::arg("numerator"), py::arg("denominator"), py::arg("sum"),
        py::arg("dtype"), py::arg("divides"), py::arg("has_part"), py::arg("is_first"),
        py::call_guard<py::gil_scoped_release>(), "The value of a loss on every rank. Collective.");
}

}  // namespace distdl::bindings
