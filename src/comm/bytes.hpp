// Bytes of one message, however many they are.
#pragma once

#include <mpi.h>

#include <cstdint>

#include "comm/error.hpp"

namespace distdl::comm {

/// A number of bytes as a count and a type, for one call of MPI. The type lives as long as this object, which the call
/// may outlive. Both sides of a message may count in different units: MPI matches the bytes.
class Bytes {
 public:
  explicit Bytes(std::int64_t size);
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes();

  Count count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  Count count_;
  MPI_Datatype type_ = MPI_BYTE;
};

}  // namespace distdl::comm
