// Small sums over a few ranks: each receiver gets the vectors of all contributors, and adds them up.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "operators/messages.hpp"

namespace distdl::operators {

/// A receiver's side of a sum, in the order of the contributors, which send their vectors to it.
class DirectSum {
 public:
  /// `contributors` are ranks of the set. `own` is this rank's vector, and is not looked at unless it is a
  /// contributor. `result` has room for the sum. Both are contiguous and of the dtype in which values are added up.
  DirectSum(Messages& messages, const std::vector<int>& contributors, const at::Tensor& own, at::Tensor result);

  /// To be called when the vectors of the others have arrived.
  void add_up();

 private:
  at::Tensor result_;
  std::vector<at::Tensor> addends_;  // by contributor
};

}  // namespace distdl::operators
