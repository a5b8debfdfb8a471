// The primitives for Python: partitions and options in, a callable out.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>

#include "autograd/apply.hpp"
#include "autograd/planned.hpp"
#include "autograd/unmodified.hpp"
#include "bindings/bindings.hpp"
#include "bindings/input.hpp"
#include "operators/all_gather.hpp"
#include "operators/all_sum_reduce.hpp"
#include "operators/broadcast.hpp"
#include "operators/byte_messages.hpp"
#include "operators/halo_exchange.hpp"
#include "operators/interval_exchange.hpp"
#include "operators/reduce_scatter.hpp"
#include "operators/repartition.hpp"
#include "operators/replicate.hpp"
#include "operators/row_exchange.hpp"
#include "operators/sum_reduce.hpp"
#include "operators/sum_route.hpp"

namespace distdl::bindings {

namespace {

using namespace operators;
using Axis = std::optional<std::vector<std::int64_t>>;

/// Nodes of autograd share operators with Python.
template <class Made, class Base = Primitive>
using Bound = py::class_<Made, Base, std::shared_ptr<Made>>;

/// (shape, ranks of the root communicator), as distdl.Partition has them.
using Workers = std::pair<Shape, std::vector<int>>;

Partition named(const char* name, const Workers& workers) { return {name, workers.second, workers.first}; }

at::Tensor call(Primitive& self, const py::object& x) {
  begin_call();
  const auto input = input_of(x);
  const py::gil_scoped_release release;
  return autograd::call(self, input);
}

std::unique_ptr<autograd::Started> start(Primitive& self, const py::object& x) {
  begin_call();
  const auto input = input_of(x);
  const py::gil_scoped_release release;
  return autograd::start(self, input);
}

at::Tensor call_adjoint(Primitive& self, const py::object& x, const at::Tensor& y) {
  const auto input = input_of(x);
  const py::gil_scoped_release release;
  return autograd::call_adjoint(self, input, y);
}

autograd::PlannedOperator plan(Primitive& self, const py::object& x) {
  const auto input = input_of(x);
  const py::gil_scoped_release release;
  return autograd::PlannedOperator::of(self, input);
}

std::pair<Shape, c10::ScalarType> trace(Primitive& self, const Shape& sizes, c10::ScalarType dtype) {
  Structure structure;
  structure.sizes = sizes;
  structure.dtype = dtype;
  const py::gil_scoped_release release;
  const c10::impl::ExcludeDispatchKeyGuard no_fake_tensors(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  const auto traced = self.trace(structure);
  return {traced.sizes, traced.dtype};
}

at::Tensor call_traced(Primitive& self, const py::object& x, bool linear, bool differentiated) {
  const auto input = input_of(x);
  const py::gil_scoped_release release;
  return autograd::call_traced(self, input, linear, differentiated);
}

template <class Made, class... Arguments>
std::shared_ptr<Made> make(const py::object& root, Arguments&&... arguments) {
  const auto handle = communicator_handle(root);
  const py::gil_scoped_release release;
  return std::make_shared<Made>(handle, std::forward<Arguments>(arguments)...);
}

template <class Made>
std::shared_ptr<Made> make_rooted(const py::object& root, const Workers& x, const Workers& y, bool transpose_src,
                                  bool transpose_dest, bool preserve_batch) {
  return make<Made>(root, named("P_x", x), named("P_y", y),
                    RootedOptions{transpose_src, transpose_dest, preserve_batch});
}

template <class Made>
std::unique_ptr<Made> make_on_ranks(const std::string& name, const py::object& root, const std::vector<int>& ranks) {
  const auto handle = communicator_handle(root);
  const py::gil_scoped_release release;
  return std::make_unique<Made>(name, handle, ranks);
}

template <class Made>
void bind_rooted(py::module_& m, const char* name) {
  Bound<Made>(m, name).def(py::init(&make_rooted<Made>), py::arg("root"), py::arg("P_x"), py::arg("P_y"),
                           py::arg("transpose_src"), py::arg("transpose_dest"), py::arg("preserve_batch"));
}

template <class Made>
void bind_along_axes(py::module_& m, const char* name, const char* axes_name) {
  Bound<Made>(m, name).def(
      py::init([axes_name](const py::object& root, const Workers& x, const Axis& along, const Axis& keep) {
        return make<Made>(root, named("P_x", x), Axes{axes_name, along, keep});
      }),
      py::arg("root"), py::arg("P_x"), py::arg("along"), py::arg("keep"));
}

}  // namespace

void bind_primitives(py::module_& m) {
  m.def("goes_directly", &operators::goes_directly, py::arg("bytes"), py::arg("ranks"),
        "Whether messages of a collective are sent directly, and may travel beside a vote.");
  m.def("check_input_unmodified", &autograd::check_input_unmodified, py::arg("layer"), py::arg("input"),
        py::arg("result"), "Makes the backward pass raise RuntimeError if the input was written before.");
  py::class_<Primitive, std::shared_ptr<Primitive>>(m, "Primitive",
                                                    "A linear operator between distributed tensors, with autograd.")
      .def("__call__", &call, py::arg("x"), "Applies it. Collective over the ranks of its partitions.")
      .def("start", &start, py::arg("x"), "The first half of a call. Collective over the ranks of its partitions.")
      .def("adjoint", &call_adjoint, py::arg("x"), py::arg("y"),
           "Applies the adjoint, without autograd, to y; x has the structure of the forward input. Collective.")
      .def("plan", &plan, py::arg("x"), "The operator for tensors of the structure of x. Collective like a call.")
      .def("trace", &trace, py::arg("sizes"), py::arg("dtype"),
           "(sizes, dtype) of the result for an input of these. Collective, if this rank's input was another one.")
      .def("call_traced", &call_traced, py::arg("x"), py::arg("linear"), py::arg("differentiated"),
           "A call, or the linear part of one, without autograd, in a program compiled for trace(). Collective.")
      .def("__deepcopy__", &shared_by_copies, py::arg("memo"), "A copied layer shares it.")
      .def_property_readonly("name", &Primitive::name)
      .def_property_readonly("active", &Primitive::active, "Whether this rank is in one of its partitions.");

  py::class_<autograd::Started>(m, "Started", "A call that was started.")
      .def("wait", &autograd::Started::wait, py::call_guard<py::gil_scoped_release>(),
           "Its result. Has to be called once; no other rank has to.")
      .def_property_readonly("waited", &autograd::Started::waited)
      .def_property_readonly("name", &autograd::Started::name);

  using autograd::PlannedOperator;
  py::class_<PlannedOperator>(m, "PlannedOperator", "An operator for tensors of one structure, which takes no vote.")
      .def("__call__", &PlannedOperator::apply, py::arg("x"), py::call_guard<py::gil_scoped_release>(),
           "Applies it, without autograd. Collective.")
      .def("start", &PlannedOperator::start, py::arg("x"), py::call_guard<py::gil_scoped_release>(),
           "The first half of a call. Collective.")
      .def("adjoint", &PlannedOperator::adjoint, "Its adjoint.")
      .def("__deepcopy__", &shared_by_copies, py::arg("memo"), "A copied layer shares it.");

  bind_rooted<BroadcastPrimitive>(m, "Broadcast");
  bind_rooted<SumReducePrimitive>(m, "SumReduce");
  bind_along_axes<AllSumReducePrimitive>(m, "AllSumReduce", "axes_reduce");
  bind_along_axes<AllGatherPrimitive>(m, "AllGather", "axes_all_gather");
  bind_along_axes<ReduceScatterPrimitive>(m, "ReduceScatter", "axes_reduce_scatter");

  Bound<ReplicatePrimitive>(m, "Replicate")
      .def(py::init([](const py::object& root, const Workers& x) {
             return make<ReplicatePrimitive>(root, named("P_x", x));
           }),
           py::arg("root"), py::arg("P_x"));

  Bound<ExchangePrimitive>(m, "Exchange");
  Bound<RepartitionPrimitive, ExchangePrimitive>(m, "Repartition")
      .def(py::init([](const py::object& root, const Workers& x, const Workers& y, bool preserve_batch) {
             return make<RepartitionPrimitive>(root, named("P_x", x), named("P_y", y), preserve_batch);
           }),
           py::arg("root"), py::arg("P_x"), py::arg("P_y"), py::arg("preserve_batch"));
  Bound<HaloExchangePrimitive, ExchangePrimitive>(m, "HaloExchange")
      .def(py::init([](const py::object& root, const Workers& x, const std::vector<Halo>& halos,
                       const std::vector<bool>& periodic, double fill) {
             return make<HaloExchangePrimitive>(root, named("P_x", x), halos, periodic, fill);
           }),
           py::arg("root"), py::arg("P_x"), py::arg("halos"), py::arg("periodic"), py::arg("fill"));
  Bound<IntervalExchangePrimitive, ExchangePrimitive>(m, "IntervalExchange")
      .def(py::init([](const std::string& layer, const py::object& root, const Workers& x, const Workers& y,
                       const std::vector<Pairs>& wanted, const std::vector<bool>& periodic, double fill) {
             const auto handle = communicator_handle(root);
             const py::gil_scoped_release release;
             std::vector<std::vector<geometry::Interval>> intervals;
             for (const auto& along : wanted) intervals.push_back(box_of(along));
             return std::make_shared<IntervalExchangePrimitive>(layer, handle, named("P_x", x), named("P_y", y),
                                                                std::move(intervals), periodic, fill);
           }),
           py::arg("layer"), py::arg("root"), py::arg("P_x"), py::arg("P_y"), py::arg("wanted"), py::arg("periodic"),
           py::arg("fill"));
  py::class_<RowExchange>(m, "RowExchange", "Rows of a matrix that travel to ranks which each call chooses.")
      .def(py::init(&make_on_ranks<RowExchange>), py::arg("layer"), py::arg("root"), py::arg("ranks"))
      .def("__deepcopy__", &shared_by_copies, py::arg("memo"), "A copied layer shares it.")
      .def(
          "__call__",
          [](const RowExchange& self, const at::Tensor& x, const std::vector<std::int64_t>& sent,
             const std::vector<std::int64_t>& received, bool requires_grad, bool has_tangent) {
            const auto lock = self.lock();
            return autograd::call(self.between(x, sent, received), x, {requires_grad, has_tangent});
          },
          py::arg("x"), py::arg("sent"), py::arg("received"), py::arg("requires_grad"), py::arg("has_tangent"),
          py::call_guard<py::gil_scoped_release>(), "The rows that arrive. Collective.");
  py::class_<ByteMessages>(m, "ByteMessages", "Messages of bytes of one call.")
      .def(py::init(&make_on_ranks<ByteMessages>), py::arg("call"), py::arg("root"), py::arg("ranks"))
      .def("receive", &ByteMessages::receive, py::arg("rank"), py::arg("size"),
           py::call_guard<py::gil_scoped_release>(), "Starts to receive bytes, which have arrived after wait().")
      .def("send", &ByteMessages::send, py::arg("rank"), py::arg("bytes"), py::call_guard<py::gil_scoped_release>(),
           "Starts to send bytes, which must not change until wait().")
      .def("wait", &ByteMessages::wait, py::call_guard<py::gil_scoped_release>(), "Waits for all messages.");
}

}  // namespace distdl::bindings
