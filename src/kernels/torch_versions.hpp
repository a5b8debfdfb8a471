// What differs between the versions of torch. Each part says from which version on it can go.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/function.h>
#include <torch/version.h>

#include <memory>
#include <set>
#include <string>
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

/// Ranks for torch's profiler, which takes no list of numbers. The first branch can go when torch 2.9 is not supported.
inline c10::IValue ranks_for_profiler(const std::set<int>& ranks) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 10
  std::string texts;  // nor any other list
  for (const auto rank : ranks) {
    if (!texts.empty()) texts += ' ';
    texts += std::to_string(rank);
  }
#else
  c10::List<std::string> texts;
  for (const auto rank : ranks) texts.push_back(std::to_string(rank));
#endif
  return texts;
}

}  // namespace distdl
