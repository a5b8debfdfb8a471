#include "comm/error.hpp"

#include "comm/failure.hpp"

namespace distdl::comm {

namespace {

std::string describe(const std::string& call, int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  return call + ": " + (length > 0 ? std::string(text, static_cast<std::size_t>(length)) : "unknown MPI error") +
         " (code " + std::to_string(code) + ")";
}

}  // namespace

MPIError::MPIError(const std::string& call, int code) : std::runtime_error(describe(call, code)), code_(code) {}

int MPIError::class_of(int code) {
  int error_class = MPI_ERR_UNKNOWN;
  return MPI_Error_class(code, &error_class) == MPI_SUCCESS ? error_class : MPI_ERR_UNKNOWN;
}

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) fail(MPIError(call, code));
}

}  // namespace distdl::comm
