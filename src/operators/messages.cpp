#include "operators/messages.hpp"

#include "operators/elements.hpp"

namespace distdl::operators {

void send(const at::Tensor& x, int rank, int tag, const comm::Communicator& communicator, comm::Requests& requests) {
  requests.keep(x);
  comm::check(DISTDL_MPI_LARGE(MPI_Isend)(x.data_ptr(), bytes_of(x, "MPI_Isend"), MPI_BYTE, rank, tag,
                                          communicator.handle(), requests.next()),
              "MPI_Isend");
}

void receive(const at::Tensor& x, int rank, int tag, const comm::Communicator& communicator, comm::Requests& requests) {
  requests.keep(x);
  comm::check(DISTDL_MPI_LARGE(MPI_Irecv)(x.data_ptr(), bytes_of(x, "MPI_Irecv"), MPI_BYTE, rank, tag,
                                          communicator.handle(), requests.next()),
              "MPI_Irecv");
}

}  // namespace distdl::operators
