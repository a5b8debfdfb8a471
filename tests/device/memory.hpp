// Memory of the device, and memory of the host that its streams read and write.
#pragma once

#include <c10/core/Allocator.h>

#include "streams.hpp"

namespace lagging {

/// Memory at addresses that nobody may touch. The device sees it elsewhere: inside(). A freed block is overwritten in
/// the order of the stream that it was allocated for, and used again there.
c10::Allocator& device_memory();
/// Lets the host touch it, as libraries do that know a device's memory.
void open_memory(bool open);
char* inside(const void* address);
/// Keeps a block, when it is freed, until the work is done that its streams have then.
void record_stream(const c10::DataPtr& data, int stream);

/// Memory of the host that is used again when the streams have passed that copied to and from it.
c10::Allocator& pinned_memory();
bool is_pinned(const void* address);
void record_pinned(const void* address, Moment moment);

}  // namespace lagging
