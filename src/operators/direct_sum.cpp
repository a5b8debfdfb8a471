#include "operators/direct_sum.hpp"

#include <utility>

#include "kernels/elements.hpp"
#include "kernels/memory.hpp"

namespace distdl::operators {

DirectSum::DirectSum(Messages& messages, const std::vector<int>& contributors, const at::Tensor& own, at::Tensor result)
    : result_(std::move(result)) {
  for (const auto contributor : contributors) {
    const bool is_me = contributor == messages.my_rank();
    addends_.push_back(is_me ? own : kernels::empty(result_.sizes(), result_.options()));
    if (!is_me) messages.receive(addends_.back(), contributor);
  }
}

void DirectSum::add_up() {
  if (addends_.size() == 1) result_.copy_(addends_.front());
  for (std::size_t c = 1; c < addends_.size(); ++c)
    kernels::add(c == 1 ? addends_.front() : result_, addends_[c], result_);
}

}  // namespace distdl::operators
