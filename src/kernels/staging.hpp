// Memory that MPI can use, for tensors on any device: tensors on a device are staged, that is copied to and from pinned
// memory of the host. MPI libraries that can use a device's memory do not wait for the work that is queued in its
// streams: messages that are handed to them have to wait themselves, see Messages.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>
#include <vector>

namespace distdl::kernels {

/// When to stage: for devices; or also for tensors on the CPU, as a stand-in where there is no device.
enum class Staging { where_needed, always };
void set_staging(Staging when);
Staging staging();

/// Whether messages from and to this device are staged.
bool is_staged(const at::Device& device);

/// Whether MPI sends and receives memory of devices itself. What is added up, or goes to several ranks at once, is
/// staged all the same.
void set_direct(bool on);
bool direct();

/// Asks a device until it has come to an event.
void wait_for(const c10::Event& event);
/// Waits until all that is queued in the current stream of a device has been done.
void wait_for_stream(const at::Device& device);

/// x in contiguous memory that MPI can read: x itself, or a copy of it.
at::Tensor for_sending(const at::Tensor& x);
/// The same for several tensors of a device, with a single wait for its stream.
std::vector<at::Tensor> for_sending(std::vector<at::Tensor> all);

/// x in contiguous memory on its device, for messages: x itself, or a copy of it.
at::Tensor packed(const at::Tensor& x);

/// Copies of tensors of a device to pinned memory. They are queued in a stream of their own, behind the work that the
/// current stream has by then, so that they pass copies to the device, which are queued in the current stream.
class CopiesToHost {
 public:
  struct Copy {
    at::Tensor from, to;  // kept until the copy is done
    c10::Event done;
  };
  /// Queues the copy of a contiguous tensor.
  Copy start(const at::Tensor& x);

 private:
  std::optional<c10::Stream> stream_;
};

/// A tensor in pinned memory, for what goes on to a device.
at::Tensor on_the_way_to(const at::Tensor& x);

/// Like empty(), in memory that MPI can write.
at::Tensor for_receiving(at::IntArrayRef sizes, const at::TensorOptions& options);

/// The sum that arrived there, in the dtype in which values are added up, on its device and in its dtype: itself, or a
/// copy of it.
at::Tensor delivered_sum(const at::Tensor& sum, const at::Device& device, c10::ScalarType dtype);

/// Work on a device is queued in streams, of which each thread has its own. Made where an operator is started, this
/// lets it run on another thread, in a stream of its own, so that the copies wait for x and for nothing else, and what
/// uses the result waits for them. On the CPU there is nothing to do.
class StreamOrder {
 public:
  explicit StreamOrder(const at::Tensor& x);
  /// Applies the operator to x on the thread that calls this.
  at::Tensor run(const at::Tensor& x, const std::function<at::Tensor()>& apply);
  /// Lets the waiting thread's stream wait for the result.
  void join(const at::Tensor& result) const;

 private:
  at::Device device_;
  std::optional<c10::Event> ready_, done_;
};

}  // namespace distdl::kernels
