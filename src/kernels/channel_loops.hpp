// Loops over elements in a row of memory, compiled for several processors. The elements belong to a single channel, or
// each belongs to another channel.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>

namespace distdl::kernels {

struct Sums {
  double first = 0, second = 0;
};

/// Sums of x - pivot, and of its squares.
Sums sum_deviations(const float* x, std::int64_t n, double pivot);
Sums sum_deviations(const double* x, std::int64_t n, double pivot);
/// The same by channel, added to the sums.
void add_deviations(const float* x, std::int64_t n, const double* pivot, double* first, double* second);
void add_deviations(const double* x, std::int64_t n, const double* pivot, double* first, double* second);

/// Sums of gradient, and of gradient * (x - pivot).
Sums sum_products(const float* gradient, const float* x, std::int64_t n, double pivot);
Sums sum_products(const double* gradient, const double* x, std::int64_t n, double pivot);
/// The same by channel, added to the sums.
void add_products(const float* gradient, const float* x, std::int64_t n, const double* pivot, double* first,
                  double* second);
void add_products(const double* gradient, const double* x, std::int64_t n, const double* pivot, double* first,
                  double* second);

/// The coefficients of a channel, or of the first of several channels.
template <class Number>
struct Line {
  const Number *pivot, *scale, *shift;
};

/// to = (x - pivot) * scale + shift
void normalize_row(float* to, const float* x, std::int64_t n, const Line<float>& of);
void normalize_row(double* to, const double* x, std::int64_t n, const Line<double>& of);
void normalize_columns(float* to, const float* x, std::int64_t n, const Line<float>& of);
void normalize_columns(double* to, const double* x, std::int64_t n, const Line<double>& of);

template <class Number>
struct Combination {
  const Number *scale, *pivot, *slope, *constant;
};

/// to = gradient * scale + (x - pivot) * slope + constant
void combine_row(float* to, const float* gradient, const float* x, std::int64_t n, const Combination<float>& of);
void combine_row(double* to, const double* gradient, const double* x, std::int64_t n, const Combination<double>& of);
void combine_columns(float* to, const float* gradient, const float* x, std::int64_t n, const Combination<float>& of);
void combine_columns(double* to, const double* gradient, const double* x, std::int64_t n,
                     const Combination<double>& of);

void widen(const c10::Half* x, std::int64_t n, float* to);
void widen(const c10::BFloat16* x, std::int64_t n, float* to);
void narrow(const float* x, std::int64_t n, c10::Half* to);
void narrow(const float* x, std::int64_t n, c10::BFloat16* to);

}  // namespace distdl::kernels
