// Tensors as messages between two ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "agreement/early_send.hpp"
#include "agreement/rank_set.hpp"
#include "comm/communicator.hpp"
#include "comm/requests.hpp"

namespace distdl::operators {

/// Whether a tensor is small enough for a buffered send: see comm/buffered_send.hpp.
bool is_buffered(const at::Tensor& x);

/// Starts to send a contiguous tensor, which `requests` keeps until it is sent, unless the send is buffered.
void send(const at::Tensor& x, int rank, int tag, const comm::Communicator& communicator, comm::Requests& requests);

/// Starts to receive into a contiguous tensor, which `requests` keeps until it has arrived.
void receive(const at::Tensor& x, int rank, int tag, const comm::Communicator& communicator, comm::Requests& requests);

/// The messages of one call between ranks of a set, over the communicator of the set, which numbers them.
class Messages {
 public:
  /// `receivers`, if there are any, gets the rank that each message goes to.
  explicit Messages(const agreement::RankSet& rank_set, int tag = agreement::kInOrder,
                    std::vector<int>* receivers = nullptr)
      : rank_set_(rank_set), tag_(tag), receivers_(receivers) {}

  /// Starts to send a contiguous tensor.
  void send(const at::Tensor& x, int rank);
  void send_to_others(const at::Tensor& x, const std::vector<int>& ranks);
  /// Starts to receive into a contiguous tensor.
  void receive(const at::Tensor& x, int rank);

  /// Waits for a message that is received, by its position.
  void wait(std::size_t position) { receiving_.wait(position); }
  /// Waits for all messages that are received and sent.
  void wait_all();

  int my_rank() const { return rank_set_.communicator->rank(); }

 private:
  const agreement::RankSet& rank_set_;
  int tag_;
  std::vector<int>* receivers_;
  comm::Requests receiving_, sending_;
};

}  // namespace distdl::operators
