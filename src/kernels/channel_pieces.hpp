// A tensor's elements by channel, in pieces that stay in the cache, as numbers of single or double precision.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <type_traits>

#include "kernels/channel_loops.hpp"
#include "kernels/channel_moments.hpp"

namespace distdl::kernels {

inline constexpr std::int64_t kPiece = 4096;     // elements, which stay in the innermost cache for their second sum
inline constexpr std::int64_t kColumns = 256;    // adjacent channels that are summed together
inline constexpr std::int64_t kGrain = 1 << 14;  // elements of a thread, at least

/// Elements as numbers of single or double precision: half precision is converted, a piece at a time.
template <class Number>
class Reader {
 public:
  explicit Reader(const at::Tensor& x) : data_(x.const_data_ptr()), dtype_(x.scalar_type()) {}

  /// n <= kPiece elements, until the next call.
  const Number* operator()(std::int64_t start, std::int64_t n) {
    if constexpr (std::is_same_v<Number, float>) {
      if (dtype_ == at::kHalf) {
        widen(static_cast<const c10::Half*>(data_) + start, n, buffer_.data());
        return buffer_.data();
      }
      if (dtype_ == at::kBFloat16) {
        widen(static_cast<const c10::BFloat16*>(data_) + start, n, buffer_.data());
        return buffer_.data();
      }
    }
    return static_cast<const Number*>(data_) + start;
  }

 private:
  const void* data_;
  at::ScalarType dtype_;
  std::array<Number, std::is_same_v<Number, float> ? kPiece : 1> buffer_;
};

template <class Number>
class Writer {
 public:
  explicit Writer(const at::Tensor& x) : data_(x.mutable_data_ptr()), dtype_(x.scalar_type()) {}

  /// Room for n <= kPiece elements. finish() stores them.
  Number* room(std::int64_t start) { return is_half() ? buffer_.data() : static_cast<Number*>(data_) + start; }
  void finish(std::int64_t start, std::int64_t n) {
    if constexpr (std::is_same_v<Number, float>) {
      if (dtype_ == at::kHalf) narrow(buffer_.data(), n, static_cast<c10::Half*>(data_) + start);
      if (dtype_ == at::kBFloat16) narrow(buffer_.data(), n, static_cast<c10::BFloat16*>(data_) + start);
    }
  }

 private:
  bool is_half() const { return dtype_ == at::kHalf || dtype_ == at::kBFloat16; }

  void* data_;
  at::ScalarType dtype_;
  std::array<Number, std::is_same_v<Number, float> ? kPiece : 1> buffer_;
};

/// The elements of a tensor in the order of its memory, as (outer, channels, inner).
struct Extents {
  std::int64_t outer, channels, inner;

  bool in_columns() const { return inner == 1; }
  std::int64_t elements_of_channel() const { return outer * inner; }

  /// The largest ranges of channels that threads take.
  std::int64_t grain() const { return std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, outer * inner)); }

  /// Calls action(start, size) for the pieces of a channel.
  template <class Action>
  void for_pieces_of(std::int64_t channel, const Action& action) const {
    for (std::int64_t i = 0; i < outer; ++i) {
      for (std::int64_t start = 0; start < inner; start += kPiece) {
        action((i * channels + channel) * inner + start, std::min(kPiece, inner - start));
      }
    }
  }

  /// Calls action(first channel, channels) for ranges of at most kColumns channels, in parallel.
  template <class Action>
  void for_columns(const Action& action) const {
    at::parallel_for(0, channels, std::max(grain(), kColumns), [&](std::int64_t first, std::int64_t last) {
      for (; first < last; first += kColumns) action(first, std::min(kColumns, last - first));
    });
  }

  /// Calls action(start, size, first channel) for all pieces of a single channel, or of a channel for each element.
  template <class Make>
  void for_all_pieces(const Make& make) const {
    const auto rows = in_columns() ? outer : outer * channels, size = in_columns() ? channels : inner;
    const auto per_thread = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, size));
    at::parallel_for(0, rows, per_thread, [&](std::int64_t first, std::int64_t last) {
      auto action = make();
      for (auto row = first; row < last; ++row) {
        for (std::int64_t start = 0; start < size; start += kPiece) {
          action(row * size + start, std::min(kPiece, size - start), in_columns() ? start : row % channels);
        }
      }
    });
  }
};

inline at::MemoryFormat format_of(const at::Tensor& x) {
  return x.is_contiguous() ? at::MemoryFormat::Contiguous : x.suggest_memory_format();
}

inline Extents extents_of(const at::Tensor& x, const Channels& channels) {
  const auto sizes = x.sizes();
  const auto product = [&](std::int64_t first, std::int64_t last) {
    return std::accumulate(sizes.begin() + first, sizes.begin() + last, std::int64_t{1}, std::multiplies<>());
  };
  const auto before = product(0, channels.first), count = channels.count(x), after = product(channels.last, x.dim());
  return x.is_contiguous() ? Extents{before, count, after} : Extents{before * after, count, 1};
}

/// Calls action with a number of the type in which x is computed.
template <class Action>
void in_compute_type(const at::Tensor& x, const Action& action) {
  if (x.scalar_type() == at::kDouble) return action(double{});
  action(float{});
}

}  // namespace distdl::kernels
