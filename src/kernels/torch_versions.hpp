// What differs between the versions of torch. Each part says from which version on it can go.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/version.h>

#include <memory>
#include <utility>

namespace distdl {

/// A node of torch's graph, as set_history() takes it. The first branch can go when torch 2.12 is not supported.
template <class Node, class... Arguments>
auto make_node(Arguments&&... arguments) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
  // deleteNode frees a long graph without recursion.
  return std::shared_ptr<Node>(new Node(std::forward<Arguments>(arguments)...), torch::autograd::deleteNode);
#else
  return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
#endif
}

}  // namespace distdl
