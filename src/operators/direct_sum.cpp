#include "operators/direct_sum.hpp"

#include <utility>

#include "comm/departing.hpp"
#include "operators/elements.hpp"
#include "operators/memory.hpp"
#include "operators/messages.hpp"

namespace distdl::operators {

namespace {

constexpr int kDirectAddend = 3;  // a tag of its own: BlockSum has others
constexpr int kMostRanks = 8;

}  // namespace

bool goes_directly(std::size_t bytes, int ranks) { return bytes <= comm::kLargestDeparting && ranks <= kMostRanks; }

DirectSum::DirectSum(const comm::Communicator& communicator, const std::vector<int>& contributors,
                     const at::Tensor& own, at::Tensor result)
    : result_(std::move(result)) {
  for (const auto contributor : contributors) {
    const bool is_me = contributor == communicator.rank();
    addends_.push_back(is_me ? own : empty(result_.sizes(), result_.options()));
    if (!is_me) receive(addends_.back(), contributor, kDirectAddend, communicator, receiving_);
  }
}

void DirectSum::finish() {
  receiving_.wait_all();
  if (addends_.size() == 1) result_.copy_(addends_.front());
  for (std::size_t c = 1; c < addends_.size(); ++c) add(c == 1 ? addends_.front() : result_, addends_[c], result_);
}

void send_addend(const at::Tensor& x, int receiver, const comm::Communicator& communicator, comm::Requests& requests) {
  send(x, receiver, kDirectAddend, communicator, requests);
}

}  // namespace distdl::operators
