// Moments of blocks, for normalization layers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.hpp"
#include "kernels/block_norm.hpp"
#include "kernels/channel_values.hpp"

namespace distdl::bindings {

using kernels::MomentGroups;

void bind_moments(py::module_& m) {
  py::class_<MomentGroups, std::shared_ptr<MomentGroups>>(m, "MomentGroups",
                                                          "How moments of workers' channels form groups.")
      .def(py::init([](std::pair<std::int64_t, std::int64_t> channels, const std::vector<std::int64_t>& sizes,
                       const at::Tensor& group, const at::Tensor& count, const at::Tensor& own, std::int64_t groups,
                       double total) {
             const kernels::Channels dims{channels.first, channels.second};
             return std::make_shared<MomentGroups>(dims, sizes, group, count, own, groups, total);
           }),
           py::arg("channels"), py::arg("sizes"), py::arg("group"), py::arg("count"), py::arg("own"), py::arg("groups"),
           py::arg("total"))
      .def("__deepcopy__", &shared_by_copies, py::arg("memo"), "A copied layer shares it.");
  m.def("block_moments", &kernels::block_moments, py::arg("x"), py::arg("groups"),
        py::call_guard<py::gil_scoped_release>(),
        "(x for normalize_block, the message with the moments of its channels).");
  m.def(
      "normalize_block",
      [](const at::Tensor& x, const at::Tensor& messages, const std::shared_ptr<MomentGroups>& groups,
         const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias, double eps, double beyond,
         at::ScalarType dtype) {
        auto [result, mean, squares] =
            kernels::normalize_block(x, messages, groups, weight, bias, {eps, beyond, dtype});
        return std::make_tuple(result, mean, squares);
      },
      py::arg("x"), py::arg("messages"), py::arg("groups"), py::arg("weight"), py::arg("bias"), py::arg("eps"),
      py::arg("beyond"), py::arg("dtype"), py::call_guard<py::gil_scoped_release>(),
      "(the normalized block, means of the groups, their sums of squared deviations).");
  m.def("follow", &kernels::follow, py::arg("running"), py::arg("value"), py::arg("divisor"), py::arg("momentum"),
        py::call_guard<py::gil_scoped_release>(), "running = (1 - momentum) * running + momentum * value / divisor");
}

}  // namespace distdl::bindings
