#include "autograd/halves.hpp"

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "comm/progress.hpp"

namespace distdl::autograd {

using operators::OperatorPtr;

namespace {

at::Tensor run(const OperatorPtr& linear_operator, const at::Tensor& x) {
  RECORD_FUNCTION(linear_operator->text(), std::vector<c10::IValue>{});
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  // Modes see operators, not what these are made of: selective checkpointing would leave out what writes to a tensor.
  const c10::impl::ExcludeDispatchKeyGuard below_modes(
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  return linear_operator->apply(x.resolve_conj().resolve_neg());  // what is lazily so in torch is not so in memory
}

std::uint32_t version_of(const at::Tensor& x) {
  return x.is_inference() ? 0 : static_cast<std::uint32_t>(x._version());
}

/// An operator that was started.
struct UnderWay {
  OperatorPtr linear_operator;
  at::Tensor x;
  std::uint32_t version;  // of x
  bool recorded;
  comm::TaskPtr task;
  at::Tensor result;
};
using UnderWayPtr = std::shared_ptr<UnderWay>;

UnderWayPtr hand_over(const OperatorPtr& linear_operator, const at::Tensor& x, bool recorded) {
  auto under_way = std::make_shared<UnderWay>(linear_operator, x, version_of(x), recorded, nullptr, at::Tensor());
  if (!linear_operator->communicates()) {
    under_way->result = run(linear_operator, x);
    return under_way;
  }
  // The state of this thread (the profiler's, for one) holds on the thread that does it.
  under_way->task = comm::start([under_way, state = at::ThreadLocalState()] {
    const at::ThreadLocalStateGuard same_state(state);
    under_way->result = run(under_way->linear_operator, under_way->x);
  });
  return under_way;
}

at::Tensor result_of(UnderWay& under_way) {
  if (under_way.task) {
    RECORD_FUNCTION(under_way.linear_operator->text() + " wait", std::vector<c10::IValue>{});
    under_way.task->wait();
  }
  if (version_of(under_way.x) != under_way.version) {
    throw std::runtime_error(under_way.linear_operator->site().name +
                             ": the input was written between start() and wait(), while it was sent");
  }
  under_way.x.reset();
  return std::exchange(under_way.result, at::Tensor());
}

void drop(void* context) { delete static_cast<UnderWayPtr*>(context); }

UnderWay& of(const at::Tensor& token) { return **token.storage().data_ptr().cast_context<UnderWayPtr>(&drop); }

}  // namespace

at::Tensor apply(const OperatorPtr& linear_operator, const at::Tensor& x) {
  if (comm::under_way() && linear_operator->communicates()) return result_of(*hand_over(linear_operator, x, false));
  return run(linear_operator, x);
}

at::Tensor start(const OperatorPtr& linear_operator, const at::Tensor& x, bool recorded) {
  auto* const context = new UnderWayPtr(hand_over(linear_operator, x, recorded));
  c10::DataPtr no_data(nullptr, context, &drop, at::kCPU);
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, std::move(no_data), nullptr, false);
  auto token = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                        x.dtype());
  token.unsafeGetTensorImpl()->set_sizes_contiguous({0});
  return token;
}

const OperatorPtr& operator_of(const at::Tensor& token) { return of(token).linear_operator; }
bool recorded(const at::Tensor& token) { return of(token).recorded; }
at::Tensor wait(const at::Tensor& token) { return result_of(of(token)); }

}  // namespace distdl::autograd
