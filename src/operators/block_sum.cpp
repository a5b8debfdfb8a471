#include "operators/block_sum.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "geometry/blocks.hpp"
#include "kernels/elements.hpp"
#include "kernels/memory.hpp"
#include "operators/messages.hpp"
#include "operators/sum_route.hpp"

namespace distdl::operators {

namespace {

constexpr int kAddend = 1, kSum = 2;  // tags: messages of one kind between two ranks arrive in order

constexpr std::int64_t kSumBlockBytes = 1 << 20;  // in the caches when it is added, and large for a message
constexpr std::int64_t kMaxBlocks = 256;          // in a part
constexpr std::int64_t kMaxBlocksUnderWay = 2;    // from each contributor

}  // namespace

BlockSum::BlockSum(const comm::Communicator& communicator, SumLayout layout, const std::vector<at::Tensor>& parts,
                   const at::Tensor& result)
    : communicator_(communicator), layout_(std::move(layout)) {
  const auto rank = communicator_.rank();
  const auto& contributors = layout_.contributors;
  const auto& receivers = layout_.receivers;
  me_ = static_cast<std::size_t>(std::find(contributors.begin(), contributors.end(), rank) - contributors.begin());
  const bool receives = std::find(receivers.begin(), receivers.end(), rank) != receivers.end();
  for (const auto& part : parts) parts_.push_back(part.view(-1));
  if (receives || receivers.empty()) result_ = result.view(-1);

  std::int64_t largest = 0;
  for (std::size_t c = 0; c < contributors.size(); ++c) largest = std::max(largest, size_of(c));
  const auto size = static_cast<std::int64_t>((parts_.empty() ? result_ : parts_.front()).element_size());
  block_ = std::max(kSumBlockBytes / size, (largest + kMaxBlocks - 1) / kMaxBlocks);

  std::int64_t most = 0;
  for (std::size_t c = 0; c < contributors.size(); ++c) {
    most = std::max(most, blocks_of(c));
    if (!receives || c == me_) continue;
    for (std::int64_t b = 0; b < blocks_of(c); ++b) {
      receive(block(result_, c, b, layout_.offsets[c]), contributors[c], kSum, communicator_, receiving_);
    }
  }
  if (me_ == contributors.size()) return;
  for (std::int64_t b = 0; b < most; ++b) {
    for (std::size_t i = 1; i < contributors.size(); ++i) {
      const auto c = (me_ + i) % contributors.size();  // so that not all ranks send to the same rank at once
      if (b < blocks_of(c)) send(block(parts_[c], c, b), contributors[c], kAddend, communicator_, sending_);
    }
  }
}

void BlockSum::add() {
  const auto& contributors = layout_.contributors;
  if (me_ == contributors.size()) return;
  const bool in_result = result_.defined();
  const bool alone = contributors.size() == 1;
  // The tensor that holds the sum of this rank's part, and where the part begins in it.
  const auto sums = in_result ? result_ : alone ? parts_[me_] : kernels::empty({size_of(me_)}, parts_[me_].options());
  const auto start = in_result && !layout_.receivers.empty() ? layout_.offsets[me_] : 0;

  const auto under_way = std::clamp(blocks_of(me_), std::int64_t{1}, kMaxBlocksUnderWay);
  const auto rooms =
      kernels::empty({static_cast<std::int64_t>(contributors.size()), under_way, std::min(block_, size_of(me_))},
                     parts_[me_].options());
  std::vector<comm::Requests> arriving(contributors.size());
  const auto room = [&](std::size_t c, std::int64_t b) {
    return rooms[static_cast<std::int64_t>(c)][b % under_way].narrow(0, 0, block(parts_[me_], me_, b).numel());
  };
  const auto expect = [&](std::int64_t b) {
    for (std::size_t c = 0; c < contributors.size() && b < blocks_of(me_); ++c) {
      if (c != me_) receive(room(c, b), contributors[c], kAddend, communicator_, arriving[c]);
    }
  };
  for (std::int64_t b = 0; b < under_way; ++b) expect(b);
  for (std::int64_t b = 0; b < blocks_of(me_); ++b) {
    auto sum = block(sums, me_, b, start);
    at::Tensor so_far;
    for (std::size_t c = 0; c < contributors.size(); ++c) {
      if (c != me_) arriving[c].wait(static_cast<std::size_t>(b));
      const auto addend = c == me_ ? block(parts_[me_], me_, b) : room(c, b);
      if (c > 0) kernels::add(so_far, addend, sum);
      so_far = c > 0 ? sum : addend;
    }
    if (alone && in_result) sum.copy_(so_far);
    expect(b + under_way);
    for (const auto receiver : layout_.receivers) {
      if (receiver != communicator_.rank()) send(sum, receiver, kSum, communicator_, sending_);
    }
  }
}

void BlockSum::finish() {
  receiving_.wait_all();
  sending_.wait_all();
}

std::int64_t BlockSum::blocks_of(std::size_t part) const { return (size_of(part) + block_ - 1) / block_; }

at::Tensor BlockSum::block(const at::Tensor& whole, std::size_t part, std::int64_t b, std::int64_t start) const {
  return whole.narrow(0, start + b * block_, std::min(block_, size_of(part) - b * block_));
}

std::vector<int> all_ranks(const comm::Communicator& communicator) {
  std::vector<int> ranks(static_cast<std::size_t>(communicator.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

SumLayout balanced_layout(std::int64_t n, std::vector<int> contributors, std::vector<int> receivers) {
  std::vector<std::int64_t> offsets{0};
  const auto parts = static_cast<std::int64_t>(contributors.size());
  for (std::int64_t c = 0; c < parts; ++c) offsets.push_back(geometry::balanced_block(n, parts, c).stop);
  return {std::move(contributors), std::move(offsets), std::move(receivers)};
}

SumLayout rooted_layout(std::int64_t n, std::int64_t bytes, std::vector<int> contributors, int root) {
  auto layout = balanced_layout(n, std::move(contributors), {root});
  if (layout.contributors.size() == 2 && bytes <= kMaxPairBytes) {
    if (layout.contributors[0] == root) layout.offsets = {0, n, n};
    if (layout.contributors[1] == root) layout.offsets = {0, 0, n};
  }
  return layout;
}

void add_twice(const comm::Communicator& communicator, const at::Tensor& own, const at::Tensor& result) {
  const auto other = kernels::empty(own.sizes(), own.options());
  const int peer = 1 - communicator.rank();
  comm::Requests requests;
  receive(other, peer, kAddend, communicator, requests);
  send(own, peer, kAddend, communicator, requests);
  requests.wait_all();
  kernels::add(peer == 1 ? own : other, peer == 1 ? other : own, result);  // in the same order on both ranks
}

std::vector<at::Tensor> parts_of(const at::Tensor& x, const SumLayout& layout) {
  std::vector<at::Tensor> parts;
  const auto flat = x.view(-1);
  for (std::size_t c = 0; c < layout.contributors.size(); ++c) {
    parts.push_back(flat.narrow(0, layout.offsets[c], layout.offsets[c + 1] - layout.offsets[c]));
  }
  return parts;
}

}  // namespace distdl::operators
