#include "kernels/channel_moments.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/channel_loops.hpp"
#include "kernels/channel_pieces.hpp"

namespace distdl::kernels {

namespace {

constexpr double kMaxLoss = 0.9999;  // part of a sum of squares that may come from a wrong guess of the mean

struct Moments {
  double count = 0, mean = 0, squares = 0;

  /// The other has elements.
  void merge(const Moments& other) {
    if (count == 0) {
      *this = other;
      return;
    }
    const double all = count + other.count, apart = other.mean - mean;
    mean += apart * (other.count / all);
    squares += other.squares + apart * apart * (count * other.count / all);
    count = all;
  }
};

/// Whether squares about a guess of the mean lose digits, because the guess is off by many deviations. Then the piece,
/// which is in the cache, is summed once more.
bool loses_digits(double count, double off, double squares) { return count * off * off > kMaxLoss * squares; }

/// The moments of elements from their sums about a guess of the mean.
Moments moments_of(double count, double guess, double off, double squares) {
  const double excess = count * off * off;
  if (std::isinf(squares)) return {count, guess + off, squares};  // both may be infinite
  return {count, guess + off, squares < excess ? 0.0 : squares - excess};
}

/// The moments of a range of channels, each of which has an element in each row of memory.
template <class Number>
void moments_of_columns(Reader<Number>& read, const Extents& extents, std::int64_t start, std::int64_t width,
                        double* means, double* squares) {
  std::array<Moments, kColumns> all;
  std::array<double, kColumns> pivot, first, second;
  const auto rows = std::max<std::int64_t>(1, 4 * kPiece / width);
  for (std::int64_t row = 0; row < extents.outer; row += rows) {
    const auto some = std::min(rows, extents.outer - row);
    const auto count = static_cast<double>(some);
    const auto sum = [&] {
      std::fill_n(first.begin(), width, 0.0);
      std::fill_n(second.begin(), width, 0.0);
      for (std::int64_t i = 0; i < some; ++i) {
        add_deviations(read((row + i) * extents.channels + start, width), width, pivot.data(), first.data(),
                       second.data());
      }
    };
    const auto* const guess = read(row * extents.channels + start, width);
    for (std::int64_t c = 0; c < width; ++c) pivot[c] = row == 0 ? static_cast<double>(guess[c]) : all[c].mean;
    sum();
    bool again = false;
    for (std::int64_t c = 0; c < width; ++c) {
      if (!loses_digits(count, first[c] / count, second[c])) continue;
      pivot[c] += first[c] / count;
      again = true;
    }
    if (again) sum();
    for (std::int64_t c = 0; c < width; ++c) all[c].merge(moments_of(count, pivot[c], first[c] / count, second[c]));
  }
  for (std::int64_t c = 0; c < width; ++c) {
    means[start + c] = all[c].mean;
    squares[start + c] = all[c].squares;
  }
}

template <class Number>
Moments moments_of_channel(Reader<Number>& read, const Extents& extents, std::int64_t channel) {
  Moments all;
  extents.for_pieces_of(channel, [&](std::int64_t start, std::int64_t size) {
    const auto* const x = read(start, size);
    const auto count = static_cast<double>(size);
    double pivot = all.count == 0 ? static_cast<double>(x[0]) : all.mean;
    auto sums = sum_deviations(x, size, pivot);
    if (loses_digits(count, sums.first / count, sums.second)) {
      pivot += sums.first / count;
      sums = sum_deviations(x, size, pivot);
    }
    all.merge(moments_of(count, pivot, sums.first / count, sums.second));
  });
  return all;
}

}  // namespace

std::int64_t Channels::count(const at::Tensor& x) const {
  std::int64_t result = 1;
  for (auto d = first; d < last; ++d) result *= x.size(d);
  return result;
}

at::Tensor Channels::view(const at::Tensor& x) const {
  std::int64_t before = 1, after = 1;
  for (std::int64_t d = 0; d < first; ++d) before *= x.size(d);
  for (auto d = last; d < x.dim(); ++d) after *= x.size(d);
  return x.reshape({before, count(x), after});
}

bool has_channel_kernels(const at::Tensor& x, const Channels& channels) {
  constexpr std::array dtypes{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
  if (x._is_zerotensor() || x.is_neg()) return false;
  if (!x.device().is_cpu() || std::find(dtypes.begin(), dtypes.end(), x.scalar_type()) == dtypes.end()) return false;
  const auto format = x.suggest_memory_format();
  return x.is_contiguous() || (channels.first == 1 && channels.last == 2 && format != at::MemoryFormat::Contiguous &&
                               x.is_contiguous(format));
}

at::ScalarType compute_dtype(const at::Tensor& x) {
  return c10::isReducedFloatingType(x.scalar_type()) ? at::kFloat : x.scalar_type();
}

void channel_moments(const at::Tensor& x, const Channels& channels, double* means, double* squares) {
  const auto extents = extents_of(x, channels);
  std::fill_n(means, extents.channels, 0.0);
  std::fill_n(squares, extents.channels, 0.0);
  if (x.numel() == 0) return;
  in_compute_type(x, [&](auto number) {
    using Number = decltype(number);
    if (extents.in_columns()) {
      extents.for_columns([&](std::int64_t start, std::int64_t width) {
        Reader<Number> read(x);
        moments_of_columns(read, extents, start, width, means, squares);
      });
      return;
    }
    at::parallel_for(0, extents.channels, extents.grain(), [&](std::int64_t first, std::int64_t last) {
      Reader<Number> read(x);
      for (auto channel = first; channel < last; ++channel) {
        const auto all = moments_of_channel(read, extents, channel);
        means[channel] = all.mean;
        squares[channel] = all.squares;
      }
    });
  });
}

at::Tensor normalize_channels(const at::Tensor& x, const Channels& channels, const Values& pivot, const Values& scale,
                              const Values& shift, at::ScalarType dtype) {
  auto result = at::empty(x.sizes(), x.options().dtype(dtype), format_of(x));
  if (x.numel() == 0) return result;
  const auto extents = extents_of(x, channels);
  in_compute_type(x, [&](auto number) {
    using Number = decltype(number);
    const std::vector<Number> pivots(pivot.begin(), pivot.end()), scales(scale.begin(), scale.end()),
        shifts(shift.begin(), shift.end());
    extents.for_all_pieces([&] {
      return [&, read = Reader<Number>(x), write = Writer<Number>(result)](std::int64_t start, std::int64_t n,
                                                                           std::int64_t channel) mutable {
        const Line<Number> of{&pivots[channel], &scales[channel], &shifts[channel]};
        auto* const to = write.room(start);
        extents.in_columns() ? normalize_columns(to, read(start, n), n, of) : normalize_row(to, read(start, n), n, of);
        write.finish(start, n);
      };
    });
  });
  return result;
}

std::pair<Values, Values> channel_products(const at::Tensor& gradient, const at::Tensor& x, const Channels& channels,
                                           const Values& pivot) {
  const auto extents = extents_of(x, channels);
  Values sums(pivot.size()), products(pivot.size());
  if (x.numel() == 0) return {sums, products};
  in_compute_type(x, [&](auto number) {
    using Number = decltype(number);
    if (extents.in_columns()) {
      extents.for_columns([&](std::int64_t start, std::int64_t width) {
        Reader<Number> read(x), read_gradient(gradient);
        for (std::int64_t row = 0; row < extents.outer; ++row) {
          const auto place = row * extents.channels + start;
          add_products(read_gradient(place, width), read(place, width), width, &pivot[start], &sums[start],
                       &products[start]);
        }
      });
      return;
    }
    at::parallel_for(0, extents.channels, extents.grain(), [&](std::int64_t first, std::int64_t last) {
      Reader<Number> read(x), read_gradient(gradient);
      for (auto channel = first; channel < last; ++channel) {
        extents.for_pieces_of(channel, [&](std::int64_t start, std::int64_t size) {
          const auto both = sum_products(read_gradient(start, size), read(start, size), size, pivot[channel]);
          sums[channel] += both.first;
          products[channel] += both.second;
        });
      }
    });
  });
  return {sums, products};
}

at::Tensor combine_channels(const at::Tensor& gradient, const Values& scale, const at::Tensor& x,
                            const Channels& channels, const Values& pivot, const Values& slope,
                            const Values& constant) {
  auto result = at::empty(x.sizes(), x.options(), format_of(x));
  if (x.numel() == 0) return result;
  const auto extents = extents_of(x, channels);
  in_compute_type(x, [&](auto number) {
    using Number = decltype(number);
    const std::vector<Number> scales(scale.begin(), scale.end()), pivots(pivot.begin(), pivot.end()),
        slopes(slope.begin(), slope.end()), constants(constant.begin(), constant.end());
    extents.for_all_pieces([&] {
      return [&, read = Reader<Number>(x), read_gradient = Reader<Number>(gradient), write = Writer<Number>(result)](
                 std::int64_t start, std::int64_t n, std::int64_t channel) mutable {
        const Combination<Number> of{&scales[channel], &pivots[channel], &slopes[channel], &constants[channel]};
        auto* const to = write.room(start);
        const auto *const own = read_gradient(start, n), *const elements = read(start, n);
        extents.in_columns() ? combine_columns(to, own, elements, n, of) : combine_row(to, own, elements, n, of);
        write.finish(start, n);
      };
    });
  });
  return result;
}

at::Tensor in_memory(const at::Tensor& tensor) {
  return tensor._is_zerotensor() ? at::zeros(tensor.sizes(), tensor.options()) : tensor.resolve_neg();
}

at::Tensor in_order_of(const at::Tensor& tensor, const at::Tensor& x) {
  return in_memory(tensor).contiguous(format_of(x));
}

}  // namespace distdl::kernels
