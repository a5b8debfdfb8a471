#include "operators/messages.hpp"

#include "comm/bytes.hpp"
#include "comm/departing.hpp"

namespace distdl::operators {

bool departs(const at::Tensor& x) { return x.is_cpu() && x.nbytes() <= comm::kLargestDeparting; }

void send(const at::Tensor& x, int rank, int tag, const comm::Communicator& communicator, comm::Requests& requests) {
  if (departs(x)) {
    comm::depart(x.const_data_ptr(), x.nbytes(), rank, tag, communicator);
    return;
  }
  requests.keep(x);
  const comm::Bytes bytes(static_cast<std::int64_t>(x.nbytes()));
  comm::check(DISTDL_MPI_LARGE(MPI_Isend)(x.data_ptr(), bytes.count(), bytes.type(), rank, tag, communicator.handle(),
                                          requests.next()),
              "MPI_Isend");
}

void receive(const at::Tensor& x, int rank, int tag, const comm::Communicator& communicator, comm::Requests& requests) {
  requests.keep(x);
  const comm::Bytes bytes(static_cast<std::int64_t>(x.nbytes()));
  comm::check(DISTDL_MPI_LARGE(MPI_Irecv)(x.data_ptr(), bytes.count(), bytes.type(), rank, tag, communicator.handle(),
                                          requests.next()),
              "MPI_Irecv");
}

}  // namespace distdl::operators
