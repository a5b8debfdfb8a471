// Counts what a program allocates with new: include it in the one file of an executable.
//   const auto before = allocations::bytes; ...; allocations::bytes - before
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace allocations {

inline std::int64_t bytes = 0;  // all that were allocated since the program started, also those that were freed

}  // namespace allocations

// The other forms of new and delete call these.
void* operator new(std::size_t size) {
  allocations::bytes += static_cast<std::int64_t>(size);
  if (auto* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
