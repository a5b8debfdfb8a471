// RowExchange: rows of a matrix travel to ranks that are chosen anew in each call. Every rank knows how many rows it
// sends to, and receives from, each of the others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "operators/linear_operator.hpp"

namespace distdl::operators {

class RowExchange {
 public:
  RowExchange(std::string layer, MPI_Comm root, const std::vector<int>& ranks);

  /// The operator for one call with this matrix: the first sent[0] rows go to the first of the ranks, the next sent[1]
  /// to the second, and so on. The result has the rows that arrive, in the order of the ranks. Rows that are left over
  /// go nowhere, and their gradient is 0. Not collective, and nothing is compared: all ranks have to pass counts that
  /// fit together. Throws on a rank outside of the ranks, or where the counts are not as many as the ranks.
  OperatorPtr between(const at::Tensor& x, const std::vector<std::int64_t>& sent,
                      const std::vector<std::int64_t>& received) const;

  comm::Lock lock() const { return id_->rank_set.lock(); }

 private:
  std::shared_ptr<const OperatorId> id_;
  std::vector<int> places_;  // of the ranks in the set, in their order
};

}  // namespace distdl::operators
