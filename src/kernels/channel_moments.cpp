#include "kernels/channel_moments.hpp"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "base/processors.hpp"

namespace distdl::kernels {

namespace {

constexpr std::int64_t kPiece = 4096;  // elements, which stay in the innermost cache for their second sum
constexpr double kMaxLoss = 0.9999;    // part of a sum of squares that may come from a wrong guess of the mean
constexpr std::int64_t kLanes = 16;    // sums side by side, because the order of additions is the program's

struct Moments {
  double count = 0, mean = 0, squares = 0;

  void merge(const Moments& other) {
    if (other.count == 0) return;
    const double all = count + other.count, apart = other.mean - mean;
    mean += apart * (other.count / all);
    squares += other.squares + apart * apart * (count * other.count / all);
    count = all;
  }
};

struct Sums {
  double of_deviations = 0, of_squares = 0;
};

template <class Element>
[[gnu::always_inline]] inline Sums sums_about(const Element* x, std::int64_t n, double pivot) {
  double deviations[kLanes] = {}, squares[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const double apart = static_cast<double>(x[i + lane]) - pivot;
      deviations[lane] += apart;
      squares[lane] += apart * apart;
    }
  }
  for (; i < n; ++i) {
    const double apart = static_cast<double>(x[i]) - pivot;
    deviations[0] += apart;
    squares[0] += apart * apart;
  }
  return {std::accumulate(deviations, deviations + kLanes, 0.0), std::accumulate(squares, squares + kLanes, 0.0)};
}

/// The values of one channel.
template <class Element>
struct Coefficients {
  Element scale, pivot, slope, constant;
};

template <class Element>
[[gnu::always_inline]] inline void combine(Element* to, const Element* gradient, const Element* x, std::int64_t n,
                                           const Coefficients<Element>& of) {
  for (std::int64_t i = 0; i < n; ++i) {
    to[i] = gradient[i] * of.scale + ((x[i] - of.pivot) * of.slope + of.constant);
  }
}

// target_clones does not work on templates.
DISTDL_FOR_PROCESSORS
Sums sums_of(const float* x, std::int64_t n, double pivot) { return sums_about(x, n, pivot); }
DISTDL_FOR_PROCESSORS
Sums sums_of(const double* x, std::int64_t n, double pivot) { return sums_about(x, n, pivot); }
DISTDL_FOR_PROCESSORS
void combine_to(float* to, const float* gradient, const float* x, std::int64_t n, const Coefficients<float>& of) {
  combine(to, gradient, x, n, of);
}
DISTDL_FOR_PROCESSORS
void combine_to(double* to, const double* gradient, const double* x, std::int64_t n, const Coefficients<double>& of) {
  combine(to, gradient, x, n, of);
}

/// The moments of elements in a row.
template <class Element>
Moments moments_of(const Element* x, std::int64_t n) {
  Moments all;
  for (std::int64_t start = 0; start < n; start += kPiece) {
    const auto size = std::min(kPiece, n - start);
    // Squares about a guess of the mean lose digits where the guess is off by many deviations. Then the piece, which
    // is in the cache, is summed once more.
    double pivot = start == 0 ? static_cast<double>(x[0]) : all.mean;
    const auto count = static_cast<double>(size);
    auto sums = sums_of(x + start, size, pivot);
    auto rest = sums.of_deviations / count;
    if (count * rest * rest > kMaxLoss * sums.of_squares) {
      pivot += rest;
      sums = sums_of(x + start, size, pivot);
      rest = sums.of_deviations / count;
    }
    all.merge({count, pivot + rest, std::max(0.0, sums.of_squares - count * rest * rest)});
  }
  return all;
}

void check(bool fits) {
  if (!fits) throw std::invalid_argument("moments of channels are of contiguous tensors (N, C, ...) in host memory");
}

bool is_block(const at::Tensor& x) { return x.dim() >= 2 && x.is_contiguous() && x.device().is_cpu(); }

}  // namespace

std::pair<at::Tensor, at::Tensor> channel_moments(const at::Tensor& x) {
  check(is_block(x));
  const auto batch = x.size(0), channels = x.size(1);
  auto means = at::zeros({channels}, x.options().dtype(at::kDouble)), squares = at::zeros_like(means);
  if (x.numel() == 0) return {means, squares};
  const auto n = x.numel() / (batch * channels);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "channel_moments", [&] {
    const auto* const elements = x.const_data_ptr<scalar_t>();
    auto *const to_means = means.data_ptr<double>(), *const to_squares = squares.data_ptr<double>();
    at::parallel_for(0, channels, 1, [&](std::int64_t first, std::int64_t last) {
      for (auto channel = first; channel < last; ++channel) {
        Moments all;
        for (std::int64_t i = 0; i < batch; ++i) all.merge(moments_of(elements + (i * channels + channel) * n, n));
        to_means[channel] = all.mean;
        to_squares[channel] = all.squares;
      }
    });
  });
  return {means, squares};
}

void combine_channels(const at::Tensor& to, const at::Tensor& gradient, const at::Tensor& scale, const at::Tensor& x,
                      const at::Tensor& pivot, const at::Tensor& slope, const at::Tensor& constant) {
  for (const auto* const block : {&to, &gradient, &x}) {
    check(is_block(*block) && block->sizes() == x.sizes() && block->scalar_type() == x.scalar_type());
  }
  for (const auto* const values : {&scale, &pivot, &slope, &constant}) {
    check(values->is_contiguous() && values->dim() == 1 && values->size(0) == x.size(1) &&
          values->scalar_type() == x.scalar_type());
  }
  if (x.numel() == 0) return;
  const auto channels = x.size(1), n = x.numel() / (x.size(0) * channels);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "combine_channels", [&] {
    auto* const results = to.data_ptr<scalar_t>();
    const auto *const gradients = gradient.const_data_ptr<scalar_t>(), *const elements = x.const_data_ptr<scalar_t>();
    const auto *const scales = scale.const_data_ptr<scalar_t>(), *const pivots = pivot.const_data_ptr<scalar_t>(),
                      *const slopes = slope.const_data_ptr<scalar_t>(),
                      *const constants = constant.const_data_ptr<scalar_t>();
    at::parallel_for(0, x.size(0) * channels, 1, [&](std::int64_t first, std::int64_t last) {
      for (auto row = first; row < last; ++row) {
        const auto c = row % channels;
        combine_to(results + row * n, gradients + row * n, elements + row * n, n,
                   {scales[c], pivots[c], slopes[c], constants[c]});
      }
    });
  });
}

}  // namespace distdl::kernels
