// Tensors as messages between two ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <deque>
#include <vector>

#include "agreement/early_send.hpp"
#include "agreement/rank_set.hpp"
#include "comm/communicator.hpp"
#include "comm/requests.hpp"
#include "kernels/staging.hpp"

namespace distdl::operators {

/// Whether a tensor is small enough for a buffered send: see comm/buffered_send.hpp.
bool is_buffered(const at::Tensor& x);

/// Starts to send a contiguous tensor, which `requests` keeps until it is sent, unless the send is buffered.
void send(const at::Tensor& x, int rank, int tag, const comm::Communicator& communicator, comm::Requests& requests);

/// Starts to receive into a contiguous tensor, which `requests` keeps until it has arrived.
void receive(const at::Tensor& x, int rank, int tag, const comm::Communicator& communicator, comm::Requests& requests);

/// The messages of one call between ranks of a set, over the communicator of the set, which numbers them.
///
/// Their tensors are on the host or on a device. In pieces, large messages are copied from a device, sent, and copied
/// to the other device at the same time. Both ranks have to cut alike, also where one of them has its tensor on the
/// host. If MPI takes memory of devices itself, messages are handed to it when the stream has been waited for: what is
/// sent is computed then, and older work no longer reads what is written.
class Messages {
 public:
  /// `receivers`, if there are any, gets the rank that each message goes to.
  explicit Messages(const agreement::RankSet& rank_set, int tag = agreement::kInOrder,
                    std::vector<int>* receivers = nullptr, bool in_pieces = false)
      : rank_set_(rank_set), tag_(tag), receivers_(receivers), in_pieces_(in_pieces) {}

  /// Starts to send a contiguous tensor. From a device it leaves in wait() and wait_all().
  void send(const at::Tensor& x, int rank) { send_to_others(x, {rank}); }
  void send_to_others(const at::Tensor& x, std::vector<int> ranks);
  /// Starts to receive into a contiguous tensor.
  void receive(const at::Tensor& x, int rank);

  /// Waits for a message that is received, by its position, and for those before it. To a device, its copy is queued.
  void wait(std::size_t position);
  /// Waits for all messages that are received and sent.
  void wait_all();

  int my_rank() const { return rank_set_.communicator->rank(); }

 private:
  struct Departure {
    kernels::CopiesToHost::Copy copy;
    std::vector<int> ranks;
  };
  struct Arrival {
    at::Tensor host, target;  // the same, if it is not copied
  };
  struct Direct {
    at::Tensor x;
    std::vector<int> ranks;
    bool receives;
  };

  /// Hands messages of a device to MPI.
  void post_direct();
  /// Sends each piece when it has been copied from the device, and lets those that have arrived go on to it.
  void send_copied();
  void send_piece(const at::Tensor& x, const std::vector<int>& ranks);
  /// Lets the next piece, which has arrived, go on to the device.
  void pass_on();

  const agreement::RankSet& rank_set_;
  int tag_;
  std::vector<int>* receivers_;
  bool in_pieces_;
  bool is_direct_ = kernels::direct();  // as when the call began
  comm::Requests receiving_, sending_;

  kernels::CopiesToHost copies_;
  std::vector<Direct> direct_;        // until the stream has been waited for
  std::deque<Departure> departures_;  // pieces that are copied from the device
  std::vector<Arrival> arrivals_;     // pieces that are received, in the order of their requests
  std::vector<std::size_t> ends_;     // of messages that are received, among the pieces
  std::size_t arrived_ = 0;           // pieces
};

}  // namespace distdl::operators
