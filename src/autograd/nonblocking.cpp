#include "autograd/nonblocking.hpp"

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>

#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "comm/progress.hpp"
#include "kernels/staging.hpp"
#include "kernels/torch_versions.hpp"

namespace distdl::autograd {

using agreement::EarlySend;
using operators::OperatorPtr;

namespace {

/// An entry of torch.profiler: the name of the operator, and with record_shapes its bytes and peers.
class ProfilerRecord {
 public:
  ProfilerRecord(const std::string& name, const at::Tensor& x, const agreement::Traffic& traffic)
      : record_(at::RecordScope::FUNCTION) {
    if (!record_.isActive()) return;
    const std::vector<c10::IValue> inputs{x};
    const std::unordered_map<std::string, c10::IValue> details{{"peers", ranks_for_profiler(traffic.peers)},
                                                               {"bytes_sent", traffic.bytes_sent},
                                                               {"bytes_received", traffic.bytes_received}};
    record_.before("distdl::" + name, &inputs, &details);
  }

 private:
  at::RecordFunction record_;
};

at::Tensor run(const OperatorPtr& linear_operator, const at::Tensor& x, EarlySend early) {
  const auto operation = agreement::operation_of(linear_operator->id(), linear_operator->pass());
  const auto& traffic = linear_operator->traffic(x);
  linear_operator->counter().count(traffic);
  const ProfilerRecord record(linear_operator->name(), x, traffic);
  const operators::BelowAutograd guard;
  return linear_operator->in_step([&] {
    // Zeros that torch makes for derivatives have no memory.
    return linear_operator->apply(x._is_zerotensor() ? at::zeros(x.sizes(), x.options()) : x, early);
  });
}

/// Lets torch run the backward passes that this thread asks for in this thread, also those of tensors on a device.
/// Torch runs the newest node first, by numbers that each thread counts for itself. If a thread of the device made
/// nodes of its own, for second derivatives, the order could differ between ranks.
void keep_backward_in_this_thread(const at::Tensor& x) {
  if (!x.is_cpu()) c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

std::uint32_t version_of(const at::Tensor& x) {
  return x.is_inference() ? 0 : static_cast<std::uint32_t>(x._version());
}

/// An operator that was started.
struct UnderWay {
  OperatorPtr linear_operator;
  at::Tensor x;
  std::uint32_t version = 0;  // of x
  bool recorded = false;
  std::optional<kernels::StreamOrder> order;
  comm::TaskPtr task;  // null if it is done
  at::Tensor result;
};
using UnderWayPtr = std::shared_ptr<UnderWay>;

UnderWayPtr hand_over(const OperatorPtr& linear_operator, const at::Tensor& x, bool recorded, EarlySend early) {
  auto under_way = std::make_shared<UnderWay>();
  under_way->linear_operator = linear_operator;
  under_way->recorded = recorded;
  if (!linear_operator->communicates()) {
    under_way->result = run(linear_operator, x, early);
    return under_way;
  }
  under_way->x = x;
  under_way->version = version_of(x);
  under_way->order.emplace(x);
  if (early.tag != agreement::kInOrder && !early.sent) {
    // Operators that were started before may still wait for other ranks. Small messages leave now, by a tag of their
    // own.
    if (const auto send = operators::early_sender(*linear_operator, x)) {
      std::vector<int> receivers;
      send(early.tag, receivers);
      early.sent = true;
    }
  }
  const agreement::CountedWaits waits(
      linear_operator->counter());  // if there is no progress thread, comm::start() waits
  // The progress thread takes over this thread's state, such as the profiler's.
  under_way->task = comm::start([under_way, early, state = at::ThreadLocalState()] {
    const at::ThreadLocalStateGuard same_state(state);
    const auto apply = [&] { return run(under_way->linear_operator, under_way->x, early); };
    under_way->result = under_way->order->run(under_way->x, apply);
  });
  return under_way;
}

at::Tensor result_of(UnderWay& under_way) {
  if (under_way.task) {
    RECORD_FUNCTION("distdl::" + under_way.linear_operator->name() + " wait", std::vector<c10::IValue>{});
    const agreement::CountedWaits waits(under_way.linear_operator->counter());
    const auto operation = agreement::operation_of(under_way.linear_operator->id(), under_way.linear_operator->pass());
    under_way.task->wait();
    if (version_of(under_way.x) != under_way.version) {
      throw std::runtime_error(under_way.linear_operator->id().name +
                               ": the input was written between start() and wait(), while it was sent");
    }
    under_way.order->join(under_way.result);
    under_way.x.reset();
  }
  return std::exchange(under_way.result, at::Tensor());
}

void drop(void* context) { delete static_cast<UnderWayPtr*>(context); }

/// On the device of the operator: there autograd runs the nodes that take it, in an order that all ranks share.
at::Tensor token_of(UnderWayPtr under_way, const at::Tensor& like) {
  auto* const context = new UnderWayPtr(std::move(under_way));
  c10::DataPtr no_data(nullptr, context, &drop, like.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, std::move(no_data), nullptr, false);
  const auto key = c10::computeDispatchKey(like.scalar_type(), c10::kStrided, like.device());
  auto token = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  token.unsafeGetTensorImpl()->set_sizes_contiguous({0});
  return token;
}

UnderWay& of(const at::Tensor& token) {
  auto* const context = token.has_storage() ? token.storage().data_ptr().cast_context<UnderWayPtr>(&drop) : nullptr;
  if (context == nullptr) {
    throw std::runtime_error(
        "distdl: a hook replaced what passes from the backward pass of wait() to that of start(); it stands for an "
        "operator that is under way, and must be passed on as it is");
  }
  return **context;
}

}  // namespace

at::Tensor apply(const OperatorPtr& linear_operator, const at::Tensor& x, EarlySend early) {
  keep_backward_in_this_thread(x);
  if (comm::under_way() && linear_operator->communicates()) {
    return result_of(*hand_over(linear_operator, x, false, early));
  }
  const agreement::CountedWaits waits(linear_operator->counter());
  return run(linear_operator, x, early);
}

at::Tensor start(const OperatorPtr& linear_operator, const at::Tensor& x, bool recorded, EarlySend early) {
  keep_backward_in_this_thread(x);
  return token_of(hand_over(linear_operator, x, recorded, early), x);
}

at::Tensor completed(const at::Tensor& result) {
  auto under_way = std::make_shared<UnderWay>();
  under_way->result = result;
  return token_of(std::move(under_way), result);
}

const OperatorPtr& operator_of(const at::Tensor& token) { return of(token).linear_operator; }
bool recorded(const at::Tensor& token) { return of(token).recorded; }
at::Tensor wait(const at::Tensor& token) { return result_of(of(token)); }

}  // namespace distdl::autograd
