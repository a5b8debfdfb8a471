#include "kernels/region_copy.hpp"

#include <ATen/ATen.h>
#include <ATen/TensorIterator.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace distdl::kernels {

namespace {

constexpr std::int64_t kShortRun = 64;        // bytes: up to here a loop takes less than a call of memcpy
constexpr std::int64_t kStreamed = 12 << 20;  // bytes: of as many, few are still in the caches when they are read
constexpr std::int64_t kStreamedRun = 256;    // bytes: in shorter runs, the lines at their ends are most of all
constexpr std::size_t kCacheLine = 64;        // bytes
constexpr std::size_t kPage = 4 << 10;        // bytes
constexpr std::size_t kLargeRun = 1 << 20;    // bytes: here memcpy does what copy_backward does

/// The copy of two matrices of elements that are `to` and `from` bytes apart in a row and from row to row.
struct Matrices {
  std::array<std::int64_t, 2> to, from, sizes;
};

/// memcpy that does not read what it overwrites, nor put it into the caches.
void stream(char* to, const char* from, std::size_t bytes) {
#ifdef __SSE2__
  const auto to_next_line = (kCacheLine - reinterpret_cast<std::uintptr_t>(to) % kCacheLine) % kCacheLine;
  const auto head = std::min(bytes, to_next_line);
  std::memcpy(to, from, head);
  auto done = head;
  for (; done + kCacheLine <= bytes; done += kCacheLine) {
    const auto* const source = reinterpret_cast<const __m128i*>(from + done);
    auto* const target = reinterpret_cast<__m128i*>(to + done);
    const auto a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const auto c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + done, from + done, bytes - done);
#else
  std::memcpy(to, from, bytes);
#endif
}

/// Streamed bytes become visible to other processors in any order, unless they are waited for.
void finish_streaming() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

/// Whether bytes are written so shortly after, modulo a page, those that are read next that a processor takes them for
/// the same. memcpy then takes up to 20 times as long, for 4 KiB to 512 KiB (glibc 2.36 on EPYC).
bool are_aliased(const char* to, const char* from, std::size_t bytes) {
  const auto ahead = (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % kPage;
  return 0 < ahead && ahead < kCacheLine && kPage <= bytes && bytes < kLargeRun;
}

/// memcpy from the last byte to the first.
void copy_backward(char* to, const char* from, std::size_t bytes) {
  for (; bytes >= kCacheLine; bytes -= kCacheLine) {
    std::memcpy(to + bytes - kCacheLine, from + bytes - kCacheLine, kCacheLine);  // of known size: loads and stores
  }
  std::memcpy(to, from, bytes);
}

void copy_run(char* to, const char* from, std::size_t bytes) {
  are_aliased(to, from, bytes) ? copy_backward(to, from, bytes) : void(std::memcpy(to, from, bytes));
}

void copy_runs(char* to, const char* from, const Matrices& matrices, std::size_t bytes, bool streams) {
  for (std::int64_t row = 0; row < matrices.sizes[1]; ++row) {
    auto* const target = to + row * matrices.to[1];
    const auto* const source = from + row * matrices.from[1];
    streams ? stream(target, source, bytes) : copy_run(target, source, bytes);
  }
  if (streams) finish_streaming();
}

template <std::size_t size>
void copy_elements(char* to, const char* from, const Matrices& matrices) {
  const auto [to_strides, from_strides, sizes] = matrices;
  for (std::int64_t row = 0; row < sizes[1]; ++row) {
    auto* target = to + row * to_strides[1];
    const auto* source = from + row * from_strides[1];
    for (std::int64_t i = 0; i < sizes[0]; ++i, target += to_strides[0], source += from_strides[0]) {
      std::memcpy(target, source, size);  // of known size: a load and a store
    }
  }
}

void copy_elements(char* to, const char* from, const Matrices& matrices, std::int64_t size) {
  switch (size) {
    case 1:
      return copy_elements<1>(to, from, matrices);
    case 2:
      return copy_elements<2>(to, from, matrices);
    case 4:
      return copy_elements<4>(to, from, matrices);
    case 8:
      return copy_elements<8>(to, from, matrices);
    default:
      return copy_elements<16>(to, from, matrices);
  }
}

/// Whether the elements of both can be copied as bytes; of a transposed matrix, ATen copies square by square.
bool are_bytes(const at::Tensor& from, const at::Tensor& to) {
  const auto size = from.element_size();
  const bool transposed = from.dim() == 2 && from.stride(0) == 1 && from.stride(1) > 1;
  return from.scalar_type() == to.scalar_type() && !from._is_zerotensor() && from.is_cpu() && to.is_cpu() &&
         from.is_conj() == to.is_conj() && from.is_neg() == to.is_neg() && size <= 16 && (size & (size - 1)) == 0 &&
         !transposed;
}

}  // namespace

const at::Tensor& copy_region(const at::Tensor& from, const at::Tensor& to) {
  // A device may read later. The memory stays until then, as pinned memory does, and is not written meanwhile.
  if (!are_bytes(from, to)) return to.copy_(from, /*non_blocking=*/!to.is_cpu());
  const auto size = static_cast<std::int64_t>(from.element_size());
  const bool large = to.numel() * size >= kStreamed;
  // It coalesces dimensions, puts the most contiguous dimension first, and shares the work among torch's threads.
  auto iterator = at::TensorIteratorConfig()
                      .set_check_mem_overlap(false)
                      .resize_outputs(false)
                      .add_output(to)
                      .add_const_input(from)
                      .build();
  iterator.for_each([size, large](char** data, const std::int64_t* strides, std::int64_t columns, std::int64_t rows) {
    const Matrices matrices{{strides[0], strides[2]}, {strides[1], strides[3]}, {columns, rows}};
    const auto run = columns * size;
    if (strides[0] == size && strides[1] == size && (run > kShortRun || rows == 1)) {
      copy_runs(data[0], data[1], matrices, static_cast<std::size_t>(run), large && run >= kStreamedRun);
    } else {
      copy_elements(data[0], data[1], matrices, size);
    }
  });
  return to;
}

}  // namespace distdl::kernels
