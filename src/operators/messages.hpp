// Tensors as messages between two ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/communicator.hpp"
#include "comm/requests.hpp"

namespace distdl::operators {

/// The tag where messages between two ranks are matched by their order alone.
inline constexpr int kInOrder = 0;

/// Whether a tensor is small enough for a message that nobody waits for: see comm/departing.hpp.
bool departs(const at::Tensor& x);

/// Starts to send a contiguous tensor, which `requests` keeps until it has left, unless it departs.
void send(const at::Tensor& x, int rank, int tag, const comm::Communicator& communicator, comm::Requests& requests);

/// Starts to receive into a contiguous tensor, which `requests` keeps until it has arrived.
void receive(const at::Tensor& x, int rank, int tag, const comm::Communicator& communicator, comm::Requests& requests);

}  // namespace distdl::operators
