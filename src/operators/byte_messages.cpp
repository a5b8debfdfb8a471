#include "operators/byte_messages.hpp"

#include <ATen/ATen.h>

#include <utility>

#include "comm/waiting.hpp"
#include "operators/messages.hpp"

namespace distdl::operators {

ByteMessages::ByteMessages(std::string call, MPI_Comm root, const std::vector<int>& ranks)
    : call_(std::move(call)), rank_set_(agreement::rank_set_of(root, ranks)), counter_(agreement::counter(call_)) {
  const auto lock = rank_set_.lock();
  tag_ = communicator().next_tag();
  counter_.count({});
}

template <class Wait>
void ByteMessages::waiting(const Wait& wait) {
  const agreement::CountedWaits waits(counter_);
  const comm::Operation operation({.name = call_, .communicator = &communicator()});
  wait();
}

at::Tensor ByteMessages::receive(int rank, std::int64_t size) {
  auto bytes = at::empty({size}, at::kByte);
  operators::receive(bytes, rank_set_.rank_of(rank), tag_, communicator(), receiving_);
  counter_.count({.bytes_received = size}, 0);
  return bytes;
}

void ByteMessages::send(int rank, const at::Tensor& bytes) {
  auto& request = sending_.at(std::exchange(oldest_, (oldest_ + 1) % kSentAtOnce));
  waiting([&] { request.wait_all(); });
  operators::send(bytes, rank_set_.rank_of(rank), tag_, communicator(), request);
  counter_.count({.messages = 1, .bytes_sent = static_cast<std::int64_t>(bytes.nbytes())}, 0);
}

void ByteMessages::wait() {
  waiting([&] {
    receiving_.wait_all();
    for (auto& request : sending_) request.wait_all();
  });
}

}  // namespace distdl::operators
