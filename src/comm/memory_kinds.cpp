#include "comm/memory_kinds.hpp"

#include <mpi.h>

#include <array>

#include "comm/error.hpp"

namespace distdl::comm {

std::string kinds_of_memory() {
  MPI_Info info = MPI_INFO_NULL;
  check(MPI_Comm_get_info(MPI_COMM_WORLD, &info), "MPI_Comm_get_info");
  std::array<char, MPI_MAX_INFO_VAL + 1> value{};
  int found = 0;
  // Not MPI_Info_get_string, which is of MPI 4.0.
  check(MPI_Info_get(info, "mpi_memory_alloc_kinds", MPI_MAX_INFO_VAL, value.data(), &found), "MPI_Info_get");
  check(MPI_Info_free(&info), "MPI_Info_free");
  return found != 0 ? value.data() : "";
}

}  // namespace distdl::comm
