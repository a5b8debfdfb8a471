// Streams of work that runs as late as it may: when the host waits for it, on a thread of the device's own.
//
// So what forgets to wait reads what was there before, each time. Where two streams are to wait for each other, what is
// missing shows if the stream that is read runs first, or if it runs last: there is a schedule for either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace lagging {

constexpr int kDevices = 2, kStreams = 64;  // the streams of device d have the numbers from d * kStreams on

/// A place in the order of a stream: behind what has been queued until then.
struct Moment {
  int stream = 0;
  std::uint64_t position = 0;
  bool operator==(const Moment&) const = default;
};

enum class Schedule {
  late,          // when the host waits for a stream, nothing runs but what this stream waits for
  others_first,  // all other streams run before it, as far as they can
};
void set_schedule(Schedule schedule);
/// Lets all that is queued run after so many microseconds, as on a device that takes its time; never, if it is 0.
void set_delay(std::int64_t microseconds);

/// A copy over the bus takes the time of so many bytes, one after the other in each direction, as
/// DISTDL_TEST_DEVICE_BANDWIDTH says.
enum class Bus { none, to_host, to_device };
void enqueue(int stream, std::function<void()> work, Bus bus = Bus::none, std::size_t bytes = 0);
/// Lets the stream wait for the moment of another stream.
void enqueue_wait(int stream, Moment moment);
Moment now(int stream);

bool has_passed(Moment moment);
/// The same, for hosts that ask until it has: lets the device go on.
bool query(Moment moment);
/// Lets the host wait. Throws what work has thrown since the last call.
void wait(Moment moment);
void wait_for_device(int device);  // all devices, if it is negative

/// Counts the calls of wait() of this process, but for those where the device falls back to the CPU.
std::int64_t synchronizations();
struct FallingBack {
  FallingBack();
  ~FallingBack();
};

}  // namespace lagging
