#include "comm/bytes.hpp"

#include <array>
#include <limits>
#include <type_traits>

namespace distdl::comm {

namespace {

/// Since MPI 4 it counts whatever there is.
constexpr bool kMayBeTooMany = std::is_same_v<Count, int>;
constexpr std::int64_t kUnit = std::int64_t{1} << 30;

/// A type of more bytes than MPI counts: units of 2^30 bytes, and the rest.
MPI_Datatype type_of(std::int64_t size) {
  MPI_Datatype unit = MPI_DATATYPE_NULL, type = MPI_DATATYPE_NULL;
  check(MPI_Type_contiguous(static_cast<int>(kUnit), MPI_BYTE, &unit), "MPI_Type_contiguous");
  const std::int64_t units = size / kUnit;
  std::array counts{narrow<int>(units, "MPI_Type_create_struct"), static_cast<int>(size % kUnit)};
  std::array<MPI_Aint, 2> places{0, static_cast<MPI_Aint>(units * kUnit)};
  std::array types{unit, MPI_Datatype{MPI_BYTE}};
  check(MPI_Type_create_struct(2, counts.data(), places.data(), types.data(), &type), "MPI_Type_create_struct");
  check(MPI_Type_commit(&type), "MPI_Type_commit");
  check(MPI_Type_free(&unit), "MPI_Type_free");
  return type;
}

}  // namespace

Bytes::Bytes(std::int64_t size) : count_(static_cast<Count>(size)) {
  if constexpr (kMayBeTooMany) {
    if (size <= std::numeric_limits<int>::max()) return;
    count_ = 1;
    type_ = type_of(size);
  }
}

Bytes::~Bytes() {
  if constexpr (kMayBeTooMany) {
    if (type_ != MPI_BYTE) MPI_Type_free(&type_);  // messages under way keep what they need of it
  }
}

}  // namespace distdl::comm
