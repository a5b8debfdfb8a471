// Tensors that keep a Python object alive: what a compiled program hands from its forward to its backward pass.
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.hpp"

namespace distdl::bindings {

namespace {

void release(void* object) {
  if (Py_IsInitialized() == 0) return;
  const py::gil_scoped_acquire acquire;
  Py_DECREF(static_cast<PyObject*>(object));
}

at::Tensor holder_of(const py::object& object) {
  c10::DataPtr no_data(nullptr, object.inc_ref().ptr(), &release, at::kCPU);
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, std::move(no_data), nullptr, false);
  auto holder = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         caffe2::TypeMeta::Make<std::uint8_t>());
  holder.unsafeGetTensorImpl()->set_sizes_contiguous({0});
  return holder;
}

py::object held_by(const at::Tensor& holder) {
  auto* const object = holder.has_storage() ? holder.storage().data_ptr().cast_context<PyObject>(&release) : nullptr;
  if (object == nullptr) {
    throw std::runtime_error(
        "distdl: a hook on saved tensors replaced what a compiled layer saved for its backward pass; it stands for a "
        "graph, and must be passed on as it is");
  }
  return py::reinterpret_borrow<py::object>(object);
}

}  // namespace

void bind_holder(py::module_& m) {
  m.def("holder_of", &holder_of, py::arg("object"), "A tensor without elements that keeps an object alive.");
  m.def("held_by", &held_by, py::arg("holder"), "The object that a tensor of holder_of(), or an alias of it, keeps.");
}

}  // namespace distdl::bindings
