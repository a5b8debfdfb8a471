// The input that a rank passes to an operator or to a layer.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "agreement/structure.hpp"

namespace distdl::agreement {

/// A tensor, or the reason why there is none. Without both, it stands for an optional tensor that is absent.
struct Input {
  at::Tensor tensor;
  std::string error;
  Structure::Error error_kind = Structure::Error::type;

  Structure structure() const;
  Derivatives derivatives() const { return derivatives_of(tensor); }
};

}  // namespace distdl::agreement
