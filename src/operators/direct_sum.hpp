// Small sums over a few ranks: each receiver gets the vectors of all contributors, and adds them up.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/requests.hpp"

namespace distdl::operators {

/// Whether messages of so many bytes between each two of so many ranks, one of them to all others or all to all, are
/// faster than MPI's collectives: they take half a round trip, and nobody waits until they are confirmed.
bool goes_directly(std::size_t bytes, int ranks);

/// A receiver's side of a sum, in the order of the contributors. Contributors call send_addend().
class DirectSum {
 public:
  /// `own` is this rank's vector, and is not looked at unless it is a contributor. `result` has room for the sum. Both
  /// are contiguous and of the dtype in which values are added up.
  DirectSum(const comm::Communicator& communicator, const std::vector<int>& contributors, const at::Tensor& own,
            at::Tensor result);

  /// Waits for the vectors of the others.
  void finish();

 private:
  at::Tensor result_;
  std::vector<at::Tensor> addends_;  // by contributor
  comm::Requests receiving_;
};

void send_addend(const at::Tensor& x, int receiver, const comm::Communicator& communicator, comm::Requests& requests);

}  // namespace distdl::operators
