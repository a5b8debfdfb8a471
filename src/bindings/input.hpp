// From a Python object to an operator's input.
#pragma once

#include "agreement/input.hpp"
#include "bindings/bindings.hpp"

namespace distdl::bindings {

/// An object that is not a tensor with memory becomes an Input with an error, which is thrown on all ranks of the
/// operator. An exception stands for a call that failed on this rank before it came to the operator.
agreement::Input input_of(py::handle x);

}  // namespace distdl::bindings
