#include "kernels/channel_loops.hpp"

#include <numeric>

#include "base/processors.hpp"

namespace distdl::kernels {

namespace {

constexpr std::int64_t kLanes = 16;  // sums side by side, because the order of additions is the program's

Sums total(const double* first, const double* second) {
  return {std::accumulate(first, first + kLanes, 0.0), std::accumulate(second, second + kLanes, 0.0)};
}

template <class Number>
[[gnu::always_inline]] inline Sums deviations(const Number* x, std::int64_t n, double pivot) {
  double first[kLanes] = {}, second[kLanes] = {};
  const auto add = [&](std::int64_t i, std::int64_t lane) {
    const double apart = static_cast<double>(x[i]) - pivot;
    first[lane] += apart;
    second[lane] += apart * apart;
  };
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
  }
  for (; i < n; ++i) add(i, 0);
  return total(first, second);
}

template <class Number>
[[gnu::always_inline]] inline Sums products(const Number* gradient, const Number* x, std::int64_t n, double pivot) {
  double first[kLanes] = {}, second[kLanes] = {};
  const auto add = [&](std::int64_t i, std::int64_t lane) {
    const auto slope = static_cast<double>(gradient[i]);
    first[lane] += slope;
    second[lane] += slope * (static_cast<double>(x[i]) - pivot);
  };
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) add(i + lane, lane);
  }
  for (; i < n; ++i) add(i, 0);
  return total(first, second);
}

template <class Number>
[[gnu::always_inline]] inline void deviations_by_channel(const Number* x, std::int64_t n, const double* pivot,
                                                         double* first, double* second) {
  for (std::int64_t i = 0; i < n; ++i) {
    const double apart = static_cast<double>(x[i]) - pivot[i];
    first[i] += apart;
    second[i] += apart * apart;
  }
}

template <class Number>
[[gnu::always_inline]] inline void products_by_channel(const Number* gradient, const Number* x, std::int64_t n,
                                                       const double* pivot, double* first, double* second) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto slope = static_cast<double>(gradient[i]);
    first[i] += slope;
    second[i] += slope * (static_cast<double>(x[i]) - pivot[i]);
  }
}

/// `step` is 0 for a single channel, and 1 for a channel for each element.
template <int step, class Number>
[[gnu::always_inline]] inline void normalize(Number* to, const Number* x, std::int64_t n, const Line<Number> of) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = (x[i] - of.pivot[step * i]) * of.scale[step * i] + of.shift[step * i];
}

template <int step, class Number>
[[gnu::always_inline]] inline void combine(Number* to, const Number* gradient, const Number* x, std::int64_t n,
                                           const Combination<Number> of) {
  for (std::int64_t i = 0; i < n; ++i) {
    to[i] =
        gradient[i] * of.scale[step * i] + ((x[i] - of.pivot[step * i]) * of.slope[step * i] + of.constant[step * i]);
  }
}

}  // namespace

// target_clones does not work on templates, so macros define the functions of each type.
#define DISTDL_CHANNEL_LOOPS(Number)                                                                             \
  DISTDL_FOR_PROCESSORS                                                                                          \
  Sums sum_deviations(const Number* x, std::int64_t n, double pivot) { return deviations(x, n, pivot); }         \
  DISTDL_FOR_PROCESSORS                                                                                          \
  void add_deviations(const Number* x, std::int64_t n, const double* pivot, double* first, double* second) {     \
    deviations_by_channel(x, n, pivot, first, second);                                                           \
  }                                                                                                              \
  DISTDL_FOR_PROCESSORS                                                                                          \
  Sums sum_products(const Number* gradient, const Number* x, std::int64_t n, double pivot) {                     \
    return products(gradient, x, n, pivot);                                                                      \
  }                                                                                                              \
  DISTDL_FOR_PROCESSORS                                                                                          \
  void add_products(const Number* gradient, const Number* x, std::int64_t n, const double* pivot, double* first, \
                    double* second) {                                                                            \
    products_by_channel(gradient, x, n, pivot, first, second);                                                   \
  }                                                                                                              \
  DISTDL_FOR_PROCESSORS                                                                                          \
  void normalize_row(Number* to, const Number* x, std::int64_t n, const Line<Number>& of) {                      \
    const Number pivot = *of.pivot, scale = *of.scale, shift = *of.shift;                                        \
    normalize<0, Number>(to, x, n, {&pivot, &scale, &shift});                                                    \
  }                                                                                                              \
  DISTDL_FOR_PROCESSORS                                                                                          \
  void normalize_columns(Number* to, const Number* x, std::int64_t n, const Line<Number>& of) {                  \
    normalize<1>(to, x, n, of);                                                                                  \
  }                                                                                                              \
  DISTDL_FOR_PROCESSORS                                                                                          \
  void combine_row(Number* to, const Number* gradient, const Number* x, std::int64_t n,                          \
                   const Combination<Number>& of) {                                                              \
    const Number scale = *of.scale, pivot = *of.pivot, slope = *of.slope, constant = *of.constant;               \
    combine<0, Number>(to, gradient, x, n, {&scale, &pivot, &slope, &constant});                                 \
  }                                                                                                              \
  DISTDL_FOR_PROCESSORS                                                                                          \
  void combine_columns(Number* to, const Number* gradient, const Number* x, std::int64_t n,                      \
                       const Combination<Number>& of) {                                                          \
    combine<1>(to, gradient, x, n, of);                                                                          \
  }

#define DISTDL_CONVERSIONS(Half)                                           \
  DISTDL_FOR_PROCESSORS                                                    \
  void widen(const Half* x, std::int64_t n, float* to) {                   \
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(x[i]); \
  }                                                                        \
  DISTDL_FOR_PROCESSORS                                                    \
  void narrow(const float* x, std::int64_t n, Half* to) {                  \
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<Half>(x[i]);  \
  }

DISTDL_CHANNEL_LOOPS(float)
DISTDL_CHANNEL_LOOPS(double)
DISTDL_CONVERSIONS(c10::Half)
DISTDL_CONVERSIONS(c10::BFloat16)

#undef DISTDL_CHANNEL_LOOPS
#undef DISTDL_CONVERSIONS

}  // namespace distdl::kernels
