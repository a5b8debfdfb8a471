// For tests that all ranks of a job run together; in place of check.hpp.
#pragma once

#include <mpi.h>

#include "check.hpp"
#include "comm/buffered_send.hpp"
#include "comm/communicator.hpp"

namespace mpi_job {

/// The private communicator of all ranks. It is freed with MPI_COMM_WORLD.
inline distdl::comm::CommunicatorPtr everyone() { return distdl::comm::communicator(MPI_COMM_WORLD); }

inline int rank() { return everyone()->rank(); }
inline int size() { return everyone()->size(); }

}  // namespace mpi_job

// Tests run in the order in which they are written. The job ends with MPI_JOB_ENDS at the end of the file.
TEST(the_job_begins) { CHECK_EQ(MPI_Init(nullptr, nullptr), MPI_SUCCESS); }
#define MPI_JOB_ENDS                       \
  TEST(the_job_ends) {                     \
    distdl::comm::finish_buffered_sends(); \
    CHECK_EQ(MPI_Finalize(), MPI_SUCCESS); \
  }
