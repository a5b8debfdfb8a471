// The error story of the MPI layer: every MPI call goes through check().
#pragma once

#include <mpi.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace distdl::comm {

/// A call of MPI that failed. The message ends with the code, "(code 17)".
class MPIError : public std::runtime_error {
 public:
  MPIError(const std::string& call, int code);

  /// The code that MPI returned: its meaning is this MPI library's own.
  int code() const { return code_; }
  /// The class of the code, such as MPI_ERR_RANK.
  int error_class() const { return class_of(code_); }
  static int class_of(int code);

 private:
  int code_;
};

/// Throws MPIError with the call's name and MPI's own text unless `code` is MPI_SUCCESS.
void check(int code, const char* call);

/// The types in which MPI counts: since MPI 4 there are calls for counts of any size, before they ended at 2^31 - 1.
#if MPI_VERSION >= 4
using Count = MPI_Count;
using Displacement = MPI_Aint;
#define DISTDL_MPI_LARGE(function) function##_c
#else
using Count = int;
using Displacement = int;
#define DISTDL_MPI_LARGE(function) function
#endif

/// Checked narrowing to what this MPI can count.
template <class Integer>
Integer narrow(std::int64_t n, const char* call) {
  if (n > static_cast<std::int64_t>(std::numeric_limits<Integer>::max())) {
    throw std::length_error(
        std::string(call) + ": " + std::to_string(n) +
        " elements in one message; this MPI library counts to 2^31 - 1, MPI 4 or later to 2^63 - 1");
  }
  return static_cast<Integer>(n);
}
inline Count count_of(std::int64_t n, const char* call) { return narrow<Count>(n, call); }
inline Displacement displacement_of(std::int64_t n, const char* call) { return narrow<Displacement>(n, call); }

}  // namespace distdl::comm
