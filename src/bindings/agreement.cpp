// Agreement of ranks before data moves, for layers written in Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "agreement/host_exchange.hpp"
#include "agreement/layer_agreement.hpp"
#include "bindings/bindings.hpp"
#include "bindings/input.hpp"
#include "comm/signals.hpp"
#include "operators/linear_operator.hpp"

namespace distdl::bindings {

using agreement::HostExchange;
using agreement::Input;
using agreement::LayerAgreement;

namespace {

/// None stands for a tensor that is absent.
Input input_or_none(py::handle x) { return x.is_none() ? Input{} : input_of(x); }

std::vector<Input> inputs_of(const py::sequence& tensors) {
  std::vector<Input> inputs;
  inputs.reserve(tensors.size());
  for (const auto& tensor : tensors) inputs.push_back(input_or_none(tensor));
  return inputs;
}

bool agree(LayerAgreement& self, const py::sequence& inputs, const py::sequence& parameters, std::string own,
           std::optional<std::int64_t> broadcast, const py::sequence& buffers, std::size_t own_buffers,
           const py::object& problem,
           const std::vector<std::pair<std::shared_ptr<operators::Primitive>, py::object>>& beside) {
  const comm::HeldSignals held;
  begin_call();
  agreement::LayerFacts facts{.tensors = inputs_of(inputs),
                              .parameters = inputs_of(parameters),
                              .own = std::move(own),
                              .broadcast = broadcast,
                              .buffers = inputs_of(buffers),
                              .own_buffers = own_buffers,
                              .problem = input_or_none(problem)};
  std::vector<Input> inputs_beside;
  for (const auto& [primitive, x] : beside) inputs_beside.push_back(input_of(x));
  std::vector<agreement::OperatorWithin> operators;
  for (std::size_t i = 0; i < beside.size(); ++i) {
    const auto send = [&, i](std::int64_t generation) {
      return beside[i].first->sender_within(inputs_beside[i], generation);
    };
    operators.push_back({.id = &beside[i].first->id(), .sender = send});
  }
  const py::gil_scoped_release release;
  return self.agree(std::move(facts), std::move(operators));
}

/// Lets results require gradients if results of other ranks do, because of tensors of those ranks, so that backward()
/// can be called on every rank.
void require_gradients(const py::object& results) {
  const auto require = [](py::handle x) {
    if (!THPVariable_Check(x.ptr())) return;
    const auto& tensor = THPVariable_Unpack(x.ptr());
    if (!tensor.requires_grad() && (tensor.is_floating_point() || tensor.is_complex())) tensor.set_requires_grad(true);
  };
  if (!py::isinstance<py::tuple>(results)) return require(results);
  for (const auto& x : py::reinterpret_borrow<py::tuple>(results)) require(x);
}

using Described = std::optional<std::pair<std::vector<std::int64_t>, c10::ScalarType>>;

std::vector<Described> structure(const LayerAgreement& self, std::size_t tensor, const std::vector<int>& ranks) {
  std::vector<Described> result;
  for (const auto& part : self.structure(tensor, ranks)) {
    result.push_back(part.present ? Described({part.sizes, part.dtype}) : std::nullopt);
  }
  return result;
}

}  // namespace

void bind_agreement(py::module_& m) {
  m.def("set_structure_check", &agreement::set_structure_check, py::arg("on"));
  m.def("structure_check", &agreement::structure_check);
  m.def("require_gradients", &require_gradients, py::arg("results"),
        "Lets a tensor, or the tensors in a tuple, require gradients, as results of other ranks do.");
  m.def("votes", &comm::votes, "How many votes and exchanges of structure this process took part in with other ranks.");
  m.def("live_communicators", &comm::live_communicators, "How many private communicators this process holds.");

  py::class_<HostExchange>(m, "HostExchange",
                           "Where ranks compare what they are about to do together, and exchange small data.")
      .def(py::init([](const py::object& root, const std::vector<int>& ranks) {
             const auto handle = communicator_handle(root);
             const py::gil_scoped_release release;
             return std::make_unique<HostExchange>(handle, ranks);
           }),
           py::arg("root"), py::arg("ranks"))
      .def_property_readonly("ranks", &HostExchange::ranks)
      .def_property_readonly("rank", &HostExchange::rank)
      .def_property_readonly("spans_hosts", &HostExchange::spans_hosts)
      .def_property_readonly("host", &HostExchange::host)
      .def(
          "compare",
          [](const HostExchange& self, const std::string& what, const std::string& text) {
            begin_call();
            const py::gil_scoped_release release;
            return self.compare(what, text);
          },
          py::arg("what"), py::arg("text"),
          "(whether all ranks passed the same text, otherwise all texts by rank). Collective.")
      .def(
          "gather",
          [](const HostExchange& self, const std::string& bytes) {
            std::vector<std::string> all;
            {
              const py::gil_scoped_release release;
              all = self.gather(bytes);
            }
            std::vector<py::bytes> result;
            for (const auto& bytes_of_rank : all) result.emplace_back(bytes_of_rank);
            return result;
          },
          py::arg("bytes"), "Every rank's bytes, by rank. Collective.")
      .def(
          "view",
          [](const HostExchange& self, const std::vector<int>& shape) {
            MPI_Comm handle = MPI_COMM_NULL;
            {
              const py::gil_scoped_release release;
              handle = self.view(shape);
            }
            return communicator_object(handle);
          },
          py::arg("shape"),
          "These ranks, in this order, as an mpi4py communicator, Cartesian if a shape is given. Collective.")
      .def(
          "apart",
          [](const HostExchange& self) {
            MPI_Comm handle = MPI_COMM_NULL;
            {
              const py::gil_scoped_release release;
              handle = self.apart();
            }
            return communicator_object(handle);
          },
          "These ranks as a communicator for calls that have no order with those of the program. Collective.");

  py::enum_<LayerAgreement::Caller>(m, "Caller", "Who calls a layer on this rank.")
      .value("program", LayerAgreement::Caller::program)
      .value("compiled_program", LayerAgreement::Caller::compiled_program)
      .value("compiler", LayerAgreement::Caller::compiler);

  py::class_<LayerAgreement>(m, "LayerAgreement", "What the ranks of a layer agree on before each call, in one vote.")
      .def(py::init([](const std::string& layer, const py::object& root, const std::vector<int>& ranks,
                       std::vector<std::string> tensors, const std::vector<std::string>& optional) {
             const auto handle = communicator_handle(root);
             const py::gil_scoped_release release;
             return std::make_unique<LayerAgreement>(layer, handle, ranks, std::move(tensors), optional);
           }),
           py::arg("layer"), py::arg("root"), py::arg("ranks"), py::arg("tensors"),
           py::arg("optional") = std::vector<std::string>())
      .def_property_readonly("active", &LayerAgreement::active)
      .def("expect", &LayerAgreement::expect, py::arg("name"), py::arg("shape"), py::arg("may_be_empty"))
      .def("name_copy", &LayerAgreement::name_copy, py::arg("copy"), "Tells a copy of a layer from other copies.")
      .def("agree", &agree, py::arg("inputs"), py::arg("parameters"), py::arg("own") = "",
           py::arg("broadcast") = py::none(), py::arg("buffers") = py::tuple(), py::arg("own_buffers") = 0,
           py::arg("problem") = py::none(), py::arg("beside") = py::tuple(),
           "Begins a call; whether the structure changed on any rank. Collective.")
      .def_property_readonly("broadcast", &LayerAgreement::broadcast)
      .def("set_caller", &LayerAgreement::set_caller, py::arg("caller"), "Who makes the next calls on this rank.")
      .def_property_readonly("sizes_are_in_question", &LayerAgreement::sizes_are_in_question,
                             "Whether the structure changed in the last agree(), and any rank runs a compiled program.")
      .def("leave", &LayerAgreement::leave, "Ends the call.")
      .def("forget", &LayerAgreement::forget, "Makes the next call agree anew; on all ranks or on none.")
      .def("vote_within", &LayerAgreement::vote_within,
           "Makes the next call vote within the call of a layer around this one, too; on all ranks or on none.")
      .def_property_readonly("requires_grad",
                             [](const LayerAgreement& self) { return self.derivatives().requires_grad; })
      .def_property_readonly("is_differentiated", &LayerAgreement::is_differentiated)
      .def_property_readonly("meets_inference_tensors", &LayerAgreement::meets_inference_tensors)
      .def_property_readonly("has_tangent", [](const LayerAgreement& self) { return self.derivatives().has_tangent; })
      .def_property_readonly("autocast", &LayerAgreement::autocast)
      .def_property_readonly("spans_hosts", &LayerAgreement::spans_hosts)
      .def("structure", &structure, py::arg("tensor"), py::arg("ranks"))
      .def("blocks", &LayerAgreement::blocks, py::arg("tensor"), py::arg("name"), py::arg("shape"), py::arg("ranks"))
      .def(
          "__deepcopy__",
          [](const LayerAgreement& self, const py::dict&) { return std::make_unique<LayerAgreement>(self); },
          py::arg("memo"), "A copied layer has calls of its own.")
      .def("__reduce__", [](const py::object&) -> py::object {
        throw py::type_error(
            "the agreement of a layer's ranks belongs to its running job and cannot be pickled; "
            "save a model's state_dict(), or distdl.sequential_state_dict(model)");
      });
}

}  // namespace distdl::bindings
