// Element types: how torch's dtypes travel, and how they are summed.
#pragma once

#include <ATen/core/Tensor.h>
#include <mpi.h>

#include "comm/error.hpp"

namespace distdl::kernels {

/// How the values of a dtype are added up: converted to `accumulate`, as `components` numbers of MPI type `type`
/// each, by `op`. Half, bfloat16 and 8-bit floats accumulate in float32. Integers wrap around. The sum of bools is
/// their logical or.
struct SumType {
  c10::ScalarType accumulate;
  MPI_Datatype type;
  MPI_Op op;
  int components;

  comm::Count count_of(std::int64_t numel, const char* call) const;
};

/// Throws TypeError for a dtype that has no sum.
SumType sum_type(c10::ScalarType dtype);

/// The dtype in which values of this dtype are added up.
c10::ScalarType accumulate_type(c10::ScalarType dtype);

/// A tensor filled with `value`. For an integral dtype minus infinity stands for the lowest value. Zero is written as
/// zero bytes, so it works for every dtype. Throws TypeError for a value that a dtype does not have.
at::Tensor filled(at::IntArrayRef sizes, double value, const at::TensorOptions& options);

/// sum = a + b, as values of their dtype are added up: for bools their logical or. `sum` may be a. b may be narrower,
/// and is not conjugated.
void add(const at::Tensor& a, const at::Tensor& b, at::Tensor sum);

/// Whether torch can copy values of this dtype at all.
bool can_travel(c10::ScalarType dtype);

/// Fills with the neutral element of addition: -0.0 for floating point, since 0.0 + -0.0 is 0.0.
void fill_neutral(const at::Tensor& x);

}  // namespace distdl::kernels
