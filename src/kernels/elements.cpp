#include "kernels/elements.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "base/errors.hpp"
#include "kernels/memory.hpp"

namespace distdl::kernels {

using c10::ScalarType;

namespace {

/// A dtype that ATen adds, to the same bits: addition is the same for signed and unsigned numbers.
ScalarType signed_twin(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::UInt16:
      return ScalarType::Short;
    case ScalarType::UInt32:
      return ScalarType::Int;
    case ScalarType::UInt64:
      return ScalarType::Long;
    default:
      return dtype;
  }
}

/// Adds modulo 2 to the number of bits, as torch does: MPI_SUM of Open MPI stops at the largest number of 8 or 16 bits.
/// The bits of the sum are the same for signed numbers. Made at the first call, and never freed.
template <class Unsigned>
MPI_Op wrapping_sum() {
  static const MPI_Op op = [] {
    const auto add = [](void* addends, void* sums, comm::Count* count, MPI_Datatype*) {
      const auto* const addend = static_cast<const Unsigned*>(addends);
      auto* const sum = static_cast<Unsigned*>(sums);
      for (comm::Count i = 0; i < *count; ++i) sum[i] = static_cast<Unsigned>(sum[i] + addend[i]);
    };
    MPI_Op created = MPI_OP_NULL;
    comm::check(DISTDL_MPI_LARGE(MPI_Op_create)(add, /*commute=*/1, &created), "MPI_Op_create");
    return created;
  }();
  return op;
}

}  // namespace

comm::Count SumType::count_of(std::int64_t numel, const char* call) const {
  return comm::count_of(numel * components, call);
}

ScalarType accumulate_type(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Half:
    case ScalarType::BFloat16:
    case ScalarType::Float8_e5m2:
    case ScalarType::Float8_e4m3fn:
    case ScalarType::Float8_e5m2fnuz:
    case ScalarType::Float8_e4m3fnuz:
    case ScalarType::Float8_e8m0fnu:
      return ScalarType::Float;
    case ScalarType::ComplexHalf:
      return ScalarType::ComplexFloat;
    default:
      return dtype;
  }
}

SumType sum_type(ScalarType dtype) {
  const auto accumulate = accumulate_type(dtype);
  switch (accumulate) {
    case ScalarType::Bool:
      return {accumulate, MPI_C_BOOL, MPI_LOR, 1};
    case ScalarType::Byte:
    case ScalarType::Char:
      return {accumulate, MPI_UINT8_T, wrapping_sum<std::uint8_t>(), 1};
    case ScalarType::Short:
    case ScalarType::UInt16:
      return {accumulate, MPI_UINT16_T, wrapping_sum<std::uint16_t>(), 1};
    case ScalarType::Int:
      return {accumulate, MPI_INT32_T, MPI_SUM, 1};
    case ScalarType::Long:
      return {accumulate, MPI_INT64_T, MPI_SUM, 1};
    case ScalarType::UInt32:
      return {accumulate, MPI_UINT32_T, MPI_SUM, 1};
    case ScalarType::UInt64:
      return {accumulate, MPI_UINT64_T, MPI_SUM, 1};
    case ScalarType::Float:
      return {accumulate, MPI_FLOAT, MPI_SUM, 1};
    case ScalarType::Double:
      return {accumulate, MPI_DOUBLE, MPI_SUM, 1};
    // A complex sum is the sum of the parts.
    case ScalarType::ComplexFloat:
      return {accumulate, MPI_FLOAT, MPI_SUM, 2};
    case ScalarType::ComplexDouble:
      return {accumulate, MPI_DOUBLE, MPI_SUM, 2};
    default:
      throw base::TypeError(std::string("values of dtype ") + c10::toString(dtype) + " cannot be summed");
  }
}

at::Tensor filled(at::IntArrayRef sizes, double value, const at::TensorOptions& options) {
  auto result = empty(sizes, options);
  if (value == 0.0) return result.zero_();
  const auto dtype = result.scalar_type();
  const bool integral = c10::isIntegralType(dtype, /*includeBool=*/true);
  try {
    if (std::isfinite(value) || !integral) return result.fill_(value);
    if (!c10::isSignedType(dtype)) return result.zero_();
    const auto bits = 8 * c10::elementSize(dtype);
    return result.fill_(std::numeric_limits<std::int64_t>::min() >> (64 - bits));
  } catch (const c10::Error&) {
    throw base::TypeError("dtype " + std::string(c10::toString(dtype)) + " has no value " + std::to_string(value));
  }
}

void add(const at::Tensor& a, const at::Tensor& b, at::Tensor sum) {
  if (sum.is_complex()) {  // part by part, as MPI does: ATen multiplies b by 1 before, and 0 times infinity is NaN
    add(at::view_as_real(a), at::view_as_real(b), at::view_as_real(sum));
    return;
  }
  const bool is_promoted = !c10::isFloat8Type(b.scalar_type()) && !c10::isBarebonesUnsignedType(b.scalar_type());
  if (!is_promoted && b.scalar_type() != sum.scalar_type()) {
    add(a, b.to(sum.scalar_type()), sum);
    return;
  }
  if (sum.scalar_type() == at::kBool) {
    at::logical_or_out(sum, a, b);
    return;
  }
  const auto same_bits = signed_twin(sum.scalar_type());
  if (same_bits == sum.scalar_type()) {
    at::add_out(sum, a, b);
  } else {
    auto signed_sum = sum.view(same_bits);
    at::add_out(signed_sum, a.view(same_bits), b.view(same_bits));
  }
}

bool can_travel(ScalarType dtype) {
  // These dtypes have only names in torch so far.
  return !(ScalarType::UInt1 <= dtype && dtype <= ScalarType::UInt7) &&
         !(ScalarType::Int1 <= dtype && dtype <= ScalarType::Int7);
}

void fill_neutral(const at::Tensor& x) {
  if (x.is_complex()) {
    at::view_as_real(x).fill_(-0.0);
  } else if (x.is_floating_point()) {
    x.fill_(-0.0);
  } else {
    x.zero_();
  }
}

}  // namespace distdl::kernels
