// What the ranks agree on before data moves, for layers written in Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>

#include "bindings/bindings.hpp"
#include "bindings/input.hpp"
#include "comm/waiting.hpp"
#include "operators/placement.hpp"

namespace distdl::bindings {

namespace {

using operators::Agreement;
using operators::Input;
using operators::Scope;
using operators::Site;

// Not the number of any operator: those count from 1.
constexpr std::int64_t kForum = -1;

/// What is known by rank of the scope, in the order in which a Python caller listed the ranks.
template <class T>
std::vector<T> in_order_of(const std::vector<int>& ranks, const Scope& scope, const std::vector<T>& by_rank) {
  std::vector<T> result;
  for (const auto rank : ranks) {
    const auto found = std::lower_bound(scope.ranks.begin(), scope.ranks.end(), rank);
    result.push_back(by_rank.at(static_cast<std::size_t>(found - scope.ranks.begin())));
  }
  return result;
}

/// Where ranks compare what they are about to make or to send together: layers, partitions, small data.
class Forum {
 public:
  Forum(MPI_Comm root, std::vector<int> ranks)
      : root_(root), ranks_(std::move(ranks)), scope_(operators::scope_of(root, {{"the forum", ranks_, {}}})) {}

  /// Whether all ranks brought the same text; if not, all texts by rank. Throws if some ranks apply an
  /// operator instead.
  std::pair<bool, std::vector<std::string>> compare(const std::string& what, const std::string& text) const {
    const auto lock = scope_.lock();
    comm::Ballot ballot;
    ballot.call = kForum;
    ballot.value = comm::value_of(text);
    const comm::Operation operation(what, 0, "", scope_.communicator.get());
    if (operators::vote(scope_, ballot, [&] { return what; }).same_value) return {true, {}};
    return {false, gather(text)};
  }

  std::vector<std::string> gather(const std::string& bytes) const {
    const auto lock = scope_.lock();
    const comm::Operation operation("an exchange of small data", 0, "", scope_.communicator.get());
    return in_order_of(ranks_, scope_, comm::gather_texts(*scope_.communicator, bytes));
  }

  MPI_Comm view(const std::vector<int>& shape) const {
    const auto lock = scope_.lock();
    return comm::communicator(root_, ranks_)->view(shape);
  }

 private:
  MPI_Comm root_;
  std::vector<int> ranks_;
  Scope scope_;
};

/// The structure of a layer's input, over the ranks of its partitions.
class LayerAgreement {
 public:
  LayerAgreement(const std::string& layer, MPI_Comm root, const std::vector<int>& ranks)
      : site_(std::make_shared<Site>(layer, operators::scope_of(root, {{"the layer's partitions", ranks, {}}}))),
        agreement_(site_) {}

  bool active() const { return site_->scope.communicator != nullptr; }

  bool changed(const Input& input, const std::string& problem, const std::string& own, bool requires_grad) {
    if (!active()) return false;
    const auto lock = site_->scope.lock();
    auto structure = input.structure();
    if (structure.error_kind == operators::Structure::Error::none && !problem.empty()) {
      structure.error_kind = operators::Structure::Error::value;
      structure.error = problem;
    }
    auto derivatives = input.derivatives();
    derivatives.requires_grad |= requires_grad && operators::records_gradients();
    return agreement_.agree(structure, derivatives, own).changed;
  }

  void forget() { agreement_.forget(); }

  std::vector<geometry::Shape> blocks(const geometry::Shape& shape, const std::vector<int>& ranks) const {
    const auto input = operators::place(site_->scope, {"P_x", ranks, shape});
    operators::check_roles(*site_, input, agreement_.structure());
    std::vector<geometry::Shape> sizes;
    for (const auto& along : operators::check_blocks(*site_, input, agreement_.structure())) {
      sizes.push_back(along.sizes());
    }
    return sizes;
  }

  std::vector<std::pair<std::vector<std::int64_t>, c10::ScalarType>> structure(const std::vector<int>& ranks) const {
    std::vector<std::pair<std::vector<std::int64_t>, c10::ScalarType>> result;
    for (const auto& one : in_order_of(ranks, site_->scope, agreement_.structure())) {
      result.emplace_back(one.sizes, one.dtype);
    }
    return result;
  }

 private:
  std::shared_ptr<const Site> site_;
  Agreement agreement_;
};

}  // namespace

Input input_of(const py::object& x) {
  if (THPVariable_Check(x.ptr())) return {THPVariable_Unpack(x.ptr()), ""};
  if (PyExceptionInstance_Check(x.ptr()) != 0) {
    const bool of_value = py::isinstance(x, py::reinterpret_borrow<py::object>(PyExc_ValueError));
    return {at::Tensor(), py::str(x),
            of_value ? operators::Structure::Error::value : operators::Structure::Error::type};
  }
  const auto type = py::str(py::type::of(x).attr("__name__")).cast<std::string>();
  return {at::Tensor(), "is of type " + type + "; it has to be a torch.Tensor"};
}

void bind_agreement(py::module_& m) {
  m.def("set_structure_check", &operators::set_structure_check, py::arg("on"));
  m.def("structure_check", &operators::structure_check);
  m.def("live_communicators", &comm::live_communicators, "How many private communicators this process holds.");

  py::class_<Forum>(m, "Forum", "Where ranks compare what they are about to do together.")
      .def(py::init([](const py::object& root, const std::vector<int>& ranks) {
             const auto handle = communicator_handle(root);
             const py::gil_scoped_release release;
             return std::make_unique<Forum>(handle, ranks);
           }),
           py::arg("root"), py::arg("ranks"))
      .def("compare", &Forum::compare, py::arg("what"), py::arg("text"), py::call_guard<py::gil_scoped_release>(),
           "(all ranks brought the same text, otherwise all texts by rank). Collective.")
      .def(
          "gather",
          [](const Forum& self, const std::string& bytes) {
            std::vector<std::string> all;
            {
              const py::gil_scoped_release release;
              all = self.gather(bytes);
            }
            std::vector<py::bytes> result;
            for (const auto& one : all) result.emplace_back(one);
            return result;
          },
          py::arg("bytes"), "Every rank's bytes, by rank. Collective.")
      .def(
          "view",
          [](const Forum& self, const std::vector<int>& shape) {
            MPI_Comm handle = MPI_COMM_NULL;
            {
              const py::gil_scoped_release release;
              handle = self.view(shape);
            }
            return communicator_object(handle);
          },
          py::arg("shape"),
          "These ranks, in this order, as an mpi4py communicator, Cartesian if a shape is given. Collective.");

  py::class_<LayerAgreement>(m, "LayerAgreement", "What the ranks of a layer know of each other's input.")
      .def(py::init([](const std::string& layer, const py::object& root, const std::vector<int>& ranks) {
             const auto handle = communicator_handle(root);
             const py::gil_scoped_release release;
             return std::make_unique<LayerAgreement>(layer, handle, ranks);
           }),
           py::arg("layer"), py::arg("root"), py::arg("ranks"))
      .def_property_readonly("active", &LayerAgreement::active)
      .def(
          "changed",
          [](LayerAgreement& self, const py::object& x, const std::string& problem, const std::string& own,
             bool requires_grad) {
            const auto input = input_of(x);
            const py::gil_scoped_release release;
            return self.changed(input, problem, own, requires_grad);
          },
          py::arg("input"), py::arg("problem") = "", py::arg("own") = "", py::arg("requires_grad") = false,
          "Whether the structure changed on any rank since the last call. A problem that a rank has with its input is "
          "a ValueError on all; so is what the layer has of its own, where it differs among the ranks. A RuntimeError "
          "on all, if some ask for gradients, of the input or of the layer's own, and others disabled them. "
          "Collective.")
      .def(
          "__deepcopy__",
          [](const LayerAgreement& self, const py::dict&) { return std::make_unique<LayerAgreement>(self); },
          py::arg("memo"), "A copied layer agrees on the structure of its own input.")
      .def("__reduce__",
           [](const py::object&) -> py::object {
             throw py::type_error(
                 "the agreement of a layer's ranks belongs to its running job and cannot be pickled; "
                 "save a model's state_dict(), or distdl.sequential_state_dict(model)");
           })
      .def("forget", &LayerAgreement::forget, "Makes the next call agree anew; on all ranks or on none.")
      .def("blocks", &LayerAgreement::blocks, py::arg("shape"), py::arg("ranks"),
           "The sizes of the input's blocks by dimension, on a partition of this shape and these ranks.")
      .def("structure", &LayerAgreement::structure, py::arg("ranks"), "(shape, dtype) on each of these ranks.");
}

}  // namespace distdl::bindings
