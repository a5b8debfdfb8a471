#include "operators/messages.hpp"

#include "comm/buffered_send.hpp"
#include "comm/bytes.hpp"

namespace distdl::operators {

bool is_buffered(const at::Tensor& x) { return x.is_cpu() && x.nbytes() <= comm::kMaxBuffered; }

void send(const at::Tensor& x, int rank, int tag, const comm::Communicator& communicator, comm::Requests& requests) {
  if (is_buffered(x)) {
    comm::send_buffered(x.const_data_ptr(), x.nbytes(), rank, tag, communicator);
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

void Messages::send(const at::Tensor& x, int rank) {
  operators::send(x, rank, tag_, *rank_set_.communicator, sending_);
  if (receivers_ != nullptr) receivers_->push_back(rank);
}

void Messages::send_to_others(const at::Tensor& x, const std::vector<int>& ranks) {
  for (const auto rank : ranks) {
    if (rank != my_rank()) send(x, rank);
  }
}

void Messages::receive(const at::Tensor& x, int rank) {
  operators::receive(x, rank, tag_, *rank_set_.communicator, receiving_);
}

void Messages::wait_all() {
  receiving_.wait_all();
  sending_.wait_all();
}

}  // namespace distdl::operators
