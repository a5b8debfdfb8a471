// The kinds of errors that operators throw.
#pragma once

#include <stdexcept>

namespace distdl::base {

/// Becomes Python's TypeError; std::invalid_argument becomes ValueError, std::runtime_error RuntimeError.
class TypeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace distdl::base
