// The device and the streams that a thread works with.
#pragma once

namespace lagging {

int current_device();
/// The number of the stream that this thread queues work in, on a device.
int current_stream(int device);

}  // namespace lagging
