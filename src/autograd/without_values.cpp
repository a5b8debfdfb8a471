#include "autograd/without_values.hpp"

#include <ATen/EmptyTensor.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "kernels/torch_versions.hpp"

namespace distdl::autograd {

at::Tensor without_values(at::IntArrayRef shape, at::IntArrayRef strides, at::ScalarType dtype) {
  return at::Tensor(at::detail::empty_strided_meta(shape, strides, dtype));
}

void take_for_result(const at::Tensor& tensor) {
  auto node = make_node<torch::autograd::Error>("distdl: a recorded model has no backward pass");
  torch::autograd::impl::set_gradient_edge(tensor, {std::move(node), 0});
}

}  // namespace distdl::autograd
