// The input that a rank passes to an operator or to a layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "agreement/structure.hpp"

namespace distdl::agreement {

/// A tensor, or the reason why this rank cannot use it. Without both, it stands for an optional tensor that is absent.
struct Input {
  at::Tensor tensor;
  std::string error;
  Structure::Error error_kind = Structure::Error::type;

  bool is_absent() const { return !tensor.defined() && error.empty(); }
  bool is_usable() const { return tensor.defined() && error.empty(); }
  Structure structure() const;
  Derivatives derivatives() const { return is_usable() ? derivatives_of(tensor) : Derivatives{}; }
};

/// Whether torch traces the operators of its dispatcher. Our calls are not among them, so a trace would miss them.
bool is_recorded();

}  // namespace distdl::agreement
