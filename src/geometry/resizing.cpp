#include "geometry/resizing.hpp"

#include <algorithm>
#include <cmath>

#include "geometry/division.hpp"

namespace distdl::geometry {

namespace {

/// The interval that an empty block of outputs reads. Such balanced blocks come last, so that an empty interval behind
/// all inputs keeps the ends of intervals from decreasing.
Interval nothing_of(std::int64_t n) { return {n, n}; }

/// The first of m equal parts of n inputs that has its middle, (i + 1/2) n / m, at `cut` or behind it.
std::int64_t part_at(std::int64_t n, std::int64_t m, std::int64_t cut) {
  return first_multiple(2 * cut * m - n, 2 * n);
}

/// The convolution kernel of bicubic interpolation at distance x, for x <= 1 and for 1 <= x <= 2. torch's compiler
/// fuses some of these multiplications and additions, for some outputs others than for the rest; here all are fused.
/// https://en.wikipedia.org/wiki/Bicubic_interpolation#Bicubic_convolution_algorithm
template <class Real>
Real cubic_inner(Real x) {
  constexpr Real a = -0.75;
  return std::fma(std::fma(a + 2, x, -(a + 3)) * x, x, Real{1});
}

template <class Real>
Real cubic_outer(Real x) {
  constexpr Real a = -0.75;
  return std::fma(std::fma(std::fma(a, x, -5 * a), x, 8 * a), x, -4 * a);
}

/// torch rounds to single precision here, also in double precision.
template <class Real>
std::int64_t floor_of(Real place) {
  return static_cast<std::int64_t>(std::floor(static_cast<float>(place)));
}

}  // namespace

std::int64_t OutputCount::of(std::int64_t n) const {
  if (size) return *size;
  const double product = static_cast<double>(n) * factor;
  return product > -1 && product < 9e18 ? static_cast<std::int64_t>(product) : -1;
}

std::int64_t AdaptiveWindows::aligned(std::int64_t n, std::int64_t cut) const { return part_at(n, outputs(n), cut); }

Interval AdaptiveWindows::reads(std::int64_t n, Interval outputs) const {
  if (n == 0 || outputs.empty()) return nothing_of(n);
  const auto m = this->outputs(n);
  return {outputs.start * n / m, (outputs.stop * n - 1) / m + 1};
}

std::int64_t Interpolation::aligned(std::int64_t n, std::int64_t cut) const {
  const auto m = outputs(n);
  if (!align_corners) return part_at(n, m, cut);
  // The middle of output o is that of input o (n - 1) / (m - 1); if there is one output, it is that of the first input.
  return m == 1 ? 1 : first_multiple((2 * cut - 1) * (m - 1), 2 * (n - 1));
}

template <class Real>
Real Interpolation::scale(std::int64_t n) const {
  const auto m = outputs(n);
  if (align_corners) return m > 1 ? static_cast<Real>(n - 1) / static_cast<Real>(m - 1) : Real{0};
  return keeps_factor ? static_cast<Real>(1.0 / count.factor) : static_cast<Real>(n) / static_cast<Real>(m);
}

template <class Real>
std::int64_t Interpolation::nearest(std::int64_t n, std::int64_t o, bool vectorized) const {
  constexpr Real half = 0.5;
  const auto place = static_cast<Real>(o);
  if (mode == Mode::nearest) {
    if (vectorized && outputs(n) == n) return o;
    if (vectorized && outputs(n) == 2 * n) return o / 2;
    return floor_of(place * scale<Real>(n));
  }
  // A scale in single precision, multiplied in double precision.
  if (vectorized) return floor_of((static_cast<double>(o) + 0.5) * static_cast<double>(scale<float>(n)));
  return floor_of(static_cast<double>(std::max(std::fma(scale<Real>(n), place + half, -half), Real{0})) + 0.5);
}

template <class Real>
void Interpolation::append(Taps& taps, std::int64_t n, std::int64_t o, bool vectorized) const {
  const auto add = [&](std::int64_t input, Real weight) {
    taps.inputs.push_back(std::clamp<std::int64_t>(input, 0, n - 1));
    taps.weights.push_back(static_cast<double>(weight));
  };
  if (mode == Mode::nearest || mode == Mode::nearest_exact) {
    add(vectorized ? nearest<float>(n, o, true) : nearest<Real>(n, o, false), Real{1});
    return;
  }
  constexpr Real half = 0.5;
  const auto place = static_cast<Real>(o);
  // One rounding: torch's kernels are compiled to fused multiplication and addition.
  auto source = align_corners ? scale<Real>(n) * place : std::fma(scale<Real>(n), place + half, -half);
  if (mode == Mode::linear) {
    if (outputs(n) == n) source = place;
    source = std::max(source, Real{0});
  }
  const auto input = std::min(floor_of(source), n - 1);
  const auto fraction = std::clamp(source - static_cast<Real>(input), Real{0}, Real{1});
  if (mode == Mode::linear) {
    add(input, 1 - fraction);
    add(outputs(n) == n ? input : input + 1, fraction);
  } else {
    add(input - 1, cubic_outer(fraction + 1));
    add(input, cubic_inner(fraction));
    add(input + 1, cubic_inner(1 - fraction));
    add(input + 2, cubic_outer((1 - fraction) + 1));
  }
}

Interpolation::Taps Interpolation::taps(std::int64_t n, Interval outputs, Arithmetic arithmetic) const {
  Taps by_output;
  for (auto o = outputs.start; o < outputs.stop; ++o) {
    if (arithmetic.in_double) {
      append<double>(by_output, n, o, arithmetic.vectorized);
    } else {
      append<float>(by_output, n, o, arithmetic.vectorized);
    }
  }
  Taps by_tap;
  const auto of_each = outputs.empty() ? 0 : by_output.inputs.size() / static_cast<std::size_t>(outputs.size());
  for (std::size_t tap = 0; tap < of_each; ++tap) {
    for (auto i = tap; i < by_output.inputs.size(); i += of_each) {
      by_tap.inputs.push_back(by_output.inputs[i]);
      by_tap.weights.push_back(by_output.weights[i]);
    }
  }
  return by_tap;
}

Interval Interpolation::reads(std::int64_t n, Interval outputs) const {
  if (n == 0 || outputs.empty()) return nothing_of(n);
  Taps ends;
  for (const auto o : {outputs.start, outputs.stop - 1}) {
    for (const bool vectorized : {false, true}) {
      append<float>(ends, n, o, vectorized);
      append<double>(ends, n, o, vectorized);
    }
  }
  const auto [first, last] = std::minmax_element(ends.inputs.begin(), ends.inputs.end());
  return {*first, *last + 1};
}

}  // namespace distdl::geometry
