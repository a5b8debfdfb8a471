// From a Python object to an operator's input.
#pragma once

#include "bindings/bindings.hpp"
#include "operators/input.hpp"

namespace distdl::bindings {

/// What is no tensor becomes an Input that says so: all ranks of the operator are to learn of it. An exception stands
/// for a call that did not get as far as the operator on this rank.
operators::Input input_of(py::handle x);

}  // namespace distdl::bindings
