// Large sums over the ranks of a group, in blocks: while one block is added, the next is on its way.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/requests.hpp"

namespace distdl::operators {

/// The ranks that add up the parts of a vector, and the ranks that get the sum. Each contributor adds up one part.
struct SumLayout {
  std::vector<int> contributors;      // ranks of the communicator
  std::vector<std::int64_t> offsets;  // contributor c adds up the elements from offsets[c] to offsets[c + 1]
  std::vector<int> receivers;         // ranks that get the whole sum; if there are none, contributors keep their parts
};

/// The ranks 0 to size - 1, for sums to which all ranks contribute, or which all receive.
std::vector<int> all_ranks(const comm::Communicator& communicator);

/// Vectors of n elements in balanced parts.
SumLayout balanced_layout(std::int64_t n, std::vector<int> contributors, std::vector<int> receivers);
/// The same for a single receiver: if it is among two contributors, and the vectors are small, it adds up everything.
SumLayout rooted_layout(std::int64_t n, std::int64_t bytes, std::vector<int> contributors, int root);

/// The sum of one vector from each contributor: they send each other the parts of their vectors, each adds up its own
/// part in the order of the contributors, which makes sums the same from run to run, and sends it to the receivers.
///
/// A rank sends all data that depend on no other rank before it waits. So the sums of several groups that share ranks
/// may be under way together, even in a ring: construct all, then add() all, then finish() all.
class BlockSum {
 public:
  /// `parts` are the parts of this rank's vector; none unless it is a contributor. `result` has room for the whole sum
  /// on receivers, for this rank's part if there are none, and is not used elsewhere. All are contiguous and of the
  /// dtype in which values are added up.
  BlockSum(const comm::Communicator& communicator, SumLayout layout, const std::vector<at::Tensor>& parts,
           const at::Tensor& result);

  void add();
  void finish();

 private:
  std::int64_t blocks_of(std::size_t part) const;
  std::int64_t size_of(std::size_t part) const { return layout_.offsets[part + 1] - layout_.offsets[part]; }
  /// Block b of a part, of a tensor in which the part begins at `start`.
  at::Tensor block(const at::Tensor& whole, std::size_t part, std::int64_t b, std::int64_t start = 0) const;

  const comm::Communicator& communicator_;
  SumLayout layout_;
  std::vector<at::Tensor> parts_;
  at::Tensor result_;       // undefined if it is not used
  std::int64_t block_ = 0;  // elements
  std::size_t me_ = 0;      // position among the contributors, or their number

  comm::Requests sending_, receiving_;
};

/// The sum of a vector from each of two ranks, for both: each adds up all of it, in the same order.
void add_twice(const comm::Communicator& communicator, const at::Tensor& own, const at::Tensor& result);

/// The parts of a contiguous tensor.
std::vector<at::Tensor> parts_of(const at::Tensor& x, const SumLayout& layout);

}  // namespace distdl::operators
