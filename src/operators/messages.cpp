#include "operators/messages.hpp"

#include <ATen/ATen.h>

#include <thread>

#include "comm/buffered_send.hpp"
#include "comm/bytes.hpp"
#include "comm/progress.hpp"
#include "operators/through_host.hpp"

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

void Messages::send_to_others(const at::Tensor& x, std::vector<int> ranks) {
  std::erase(ranks, my_rank());
  if (ranks.empty()) return;
  for (const auto& piece : pieces_of(x, in_pieces_)) {
    if (x.is_cpu()) {
      send_piece(piece, ranks);
    } else if (is_direct_) {
      direct_.push_back({piece, ranks, false});
    } else {
      departures_.push_back({copies_.start(piece), ranks});
    }
  }
  if (receivers_ != nullptr) receivers_->insert(receivers_->end(), ranks.begin(), ranks.end());
}

void Messages::receive(const at::Tensor& x, int rank) {
  for (const auto& piece : pieces_of(x, in_pieces_)) {
    const bool copied = !x.is_cpu() && !is_direct_;
    arrivals_.push_back({copied ? kernels::on_the_way_to(piece) : piece, piece});
    if (copied || x.is_cpu()) {
      operators::receive(arrivals_.back().host, rank, tag_, *rank_set_.communicator, receiving_);
    } else {
      direct_.push_back({piece, {rank}, true});
    }
  }
  ends_.push_back(arrivals_.size());
}

void Messages::wait(std::size_t position) {
  send_copied();
  while (arrived_ < ends_.at(position)) {
    receiving_.wait(arrived_);
    pass_on();
  }
}

void Messages::wait_all() {
  send_copied();
  if (!ends_.empty() && !arrivals_.front().target.is_cpu()) wait(ends_.size() - 1);
  receiving_.wait_all();
  sending_.wait_all();
}

void Messages::post_direct() {
  if (direct_.empty()) return;
  kernels::wait_for_stream(direct_.front().x.device());
  for (const auto& [x, ranks, receives] : direct_) {
    if (receives) {
      operators::receive(x, ranks.front(), tag_, *rank_set_.communicator, receiving_);
    } else {
      send_piece(x, ranks);
    }
  }
  direct_.clear();
}

void Messages::send_copied() {
  post_direct();
  for (int polls = 0; !departures_.empty(); ++polls) {
    const auto& [copy, ranks] = departures_.front();
    if (copy.done.query()) {
      send_piece(copy.to, ranks);
      departures_.pop_front();
      polls = 0;
    }
    if (!sending_.empty()) sending_.test(sending_.size() - 1);  // which lets it go on
    if (arrived_ < arrivals_.size() && receiving_.test(arrived_)) pass_on();
    comm::patient() ? comm::pause(polls) : std::this_thread::yield();
  }
}

void Messages::send_piece(const at::Tensor& x, const std::vector<int>& ranks) {
  for (const auto rank : ranks) operators::send(x, rank, tag_, *rank_set_.communicator, sending_);
}

void Messages::pass_on() {
  const auto& [host, target] = arrivals_[arrived_++];
  if (!target.is_same(host)) target.copy_(host, /*non_blocking=*/true);
}

}  // namespace distdl::operators
