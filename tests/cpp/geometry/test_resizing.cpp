#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "../check.hpp"
#include "geometry/blocks.hpp"
#include "geometry/resizing.hpp"

using namespace distdl::geometry;

namespace {

using Mode = Interpolation::Mode;

constexpr std::array modes{Mode::nearest, Mode::nearest_exact, Mode::linear, Mode::cubic};

/// Calls visit with every interpolation to a few sizes and by a few factors, and the number of inputs.
template <class Visit>
void for_each_interpolation(Visit visit) {
  for (const auto mode : modes) {
    for (const bool align_corners : {false, true}) {
      if (align_corners && mode != Mode::linear && mode != Mode::cubic) continue;
      for (std::int64_t n = 1; n < 24; ++n) {
        for (std::int64_t m = 1; m < 24; ++m) visit(Interpolation{mode, {m}, align_corners, false}, n);
        for (const double factor : {0.3, 1.0, 1.1, 2.0, 2.3, 3.7}) {
          const Interpolation interpolation{mode, {std::nullopt, factor}, align_corners, true};
          if (interpolation.outputs(n) > 0) visit(interpolation, n);
        }
      }
    }
  }
}

/// Checks what balanced blocks of outputs read: in order, within the inputs, and empty for empty blocks.
template <class Made>
void check_reads(const Made& resizing, std::int64_t n) {
  const auto outputs = Blocks::balanced(resizing.outputs(n), 7);
  Interval before{0, 0};
  for (std::int64_t i = 0; i < outputs.count(); ++i) {
    const auto here = resizing.reads(n, outputs.at(i));
    CHECK(here.start >= before.start);
    CHECK(here.stop >= before.stop);
    CHECK(here.stop <= n);
    CHECK_EQ(here.empty(), outputs.at(i).empty());
    before = here;
  }
}

/// Blocks of a few inputs, empty ones too.
const std::vector<Shape> input_sizes{{4, 3}, {1, 1, 1}, {0, 5, 0, 2}, {0, 0, 3}, {6, 0}, {9}};

/// Every output is in the block of the input at its place; an output beyond the ends is in that of the first or the
/// last input.
template <class Made, class Place>
void check_aligned(const Made& resizing, const Shape& sizes, Place place) {
  const auto inputs = Blocks::of_sizes(sizes);
  const auto n = inputs.extent();
  Shape expected(sizes.size(), 0);
  for (std::int64_t o = 0; o < resizing.outputs(n); ++o) {
    const auto at = std::clamp(place(o), std::int64_t{0}, n - 1);
    for (std::int64_t i = 0; i < inputs.count(); ++i) {
      if (inputs.at(i).start <= at && at < inputs.at(i).stop) ++expected[static_cast<std::size_t>(i)];
    }
  }
  CHECK_EQ(aligned_blocks(resizing, inputs).sizes(), expected);
}

}  // namespace

TEST(aligned_blocks_of_windows_hold_those_with_their_middle_in_the_block) {
  for (const auto& sizes : input_sizes) {
    for (std::int64_t kernel = 1; kernel < 6; ++kernel) {
      for (std::int64_t stride = 1; stride < 5; ++stride) {
        for (std::int64_t padding = 0; padding < 4; ++padding) {
          for (std::int64_t dilation = 1; dilation < 3; ++dilation) {
            const Window window{kernel, stride, padding, padding, dilation};
            check_aligned(window, sizes, [&](auto o) { return o * stride - padding + (dilation * (kernel - 1)) / 2; });
            const TransposedWindow transposed{kernel, stride, padding, dilation, 0};
            const auto reach = dilation * (kernel - 1) + 1;
            if (transposed.outputs(Blocks::of_sizes(sizes).extent()) < 1) continue;
            check_aligned(transposed, sizes, [&](auto o) {
              const auto place = (static_cast<double>(o + padding) - static_cast<double>(reach - stride) / 2) /
                                 static_cast<double>(stride);
              return static_cast<std::int64_t>(std::floor(place));
            });
          }
        }
      }
    }
  }
}

TEST(aligned_blocks_of_resizings_keep_the_ratio) {
  for (const auto& sizes : input_sizes) {
    const auto n = Blocks::of_sizes(sizes).extent();
    for (std::int64_t m = 0; m < 20; ++m) {
      const auto middle = [&](auto o) { return (2 * o + 1) * n / (2 * m); };
      check_aligned(AdaptiveWindows{{m}}, sizes, middle);
      if (m == 0) continue;
      check_aligned(Interpolation{Mode::linear, {m}}, sizes, middle);
      check_aligned(Interpolation{Mode::linear, {m}, true}, sizes, [&](auto o) {
        if (m == 1) return std::int64_t{0};
        return static_cast<std::int64_t>(
            std::floor(static_cast<double>(o * (n - 1)) / static_cast<double>(m - 1) + 0.5));
      });
    }
  }
}

TEST(aligned_blocks_that_stay_as_they_are) {
  const Shape sizes{3, 0, 5, 2};
  CHECK_EQ((aligned_blocks(Window{3, 1, 1, 1}, Blocks::of_sizes(sizes)).sizes()), sizes);
  CHECK_EQ((aligned_blocks(TransposedWindow{2, 2, 0, 1, 0}, Blocks::of_sizes(sizes)).sizes()), (Shape{6, 0, 10, 4}));
  CHECK_EQ((aligned_blocks(Window{1}, Blocks::of_sizes({0, 0})).sizes()), (Shape{0, 0}));
}

TEST(as_many_outputs_as_asked_for) {
  CHECK_EQ((OutputCount{5}.of(3)), 5);
  CHECK_EQ((OutputCount{}.of(3)), 3);
  CHECK_EQ((OutputCount{std::nullopt, 2.5}.of(3)), 7);
  CHECK_EQ((OutputCount{std::nullopt, 0.1}.of(3)), 0);
  CHECK_EQ((OutputCount{std::nullopt, -1.0}.of(3)), -1);
  CHECK_EQ((OutputCount{std::nullopt, std::numeric_limits<double>::infinity()}.of(3)), -1);
  CHECK_EQ((OutputCount{std::nullopt, std::numeric_limits<double>::quiet_NaN()}.of(3)), -1);
}

TEST(adaptive_windows_are_rounded_outwards) {
  for (std::int64_t n = 1; n < 30; ++n) {
    for (std::int64_t m = 1; m < 30; ++m) {
      const AdaptiveWindows windows{{m}};
      for (std::int64_t i = 0; i < m; ++i) {
        const auto start = static_cast<std::int64_t>(std::floor(static_cast<double>(i * n) / static_cast<double>(m)));
        const auto stop =
            static_cast<std::int64_t>(std::ceil(static_cast<double>((i + 1) * n) / static_cast<double>(m)));
        CHECK_EQ(windows.reads(n, {i, i + 1}), (Interval{start, stop}));
      }
      CHECK_EQ(windows.reads(n, {0, m}), (Interval{0, n}));
      check_reads(windows, n);
    }
  }
  check_reads(AdaptiveWindows{{0}}, 4);
  CHECK(AdaptiveWindows{{3}}.reads(0, {0, 3}).empty());
}

TEST(interpolation_reads_what_its_taps_need) {
  for_each_interpolation([](const Interpolation& interpolation, std::int64_t n) {
    const auto outputs = Blocks::balanced(interpolation.outputs(n), 3);
    for (std::int64_t i = 0; i < outputs.count(); ++i) {
      const auto reads = interpolation.reads(n, outputs.at(i));
      for (const bool in_double : {false, true}) {
        for (const bool vectorized : {false, true}) {
          for (const auto input : interpolation.taps(n, outputs.at(i), {in_double, vectorized}).inputs) {
            CHECK(reads.start <= input && input < reads.stop);
          }
        }
      }
    }
    check_reads(interpolation, n);
  });
}

TEST(weights_of_every_output_add_up_to_one) {
  for_each_interpolation([](const Interpolation& interpolation, std::int64_t n) {
    const auto m = interpolation.outputs(n);
    for (const bool in_double : {false, true}) {
      const auto taps = interpolation.taps(n, {0, m}, {in_double, false});
      for (std::int64_t o = 0; o < m; ++o) {
        double sum = 0;
        for (auto i = o; i < std::ssize(taps.weights); i += m) sum += taps.weights[static_cast<std::size_t>(i)];
        CHECK(std::abs(sum - 1) < (in_double ? 1e-14 : 1e-6));
      }
    }
  });
}

TEST(taps_of_a_few_outputs) {
  const Interpolation nearest{Mode::nearest, {4}};
  CHECK_EQ((nearest.taps(2, {1, 4}, {}).inputs), (Shape{0, 1, 1}));
  const Interpolation linear{Mode::linear, {4}};  // places -1/4 (and so 0), 1/4, 3/4, 5/4
  CHECK_EQ((linear.taps(2, {0, 4}, {true, false}).inputs), (Shape{0, 0, 0, 1, 1, 1, 1, 1}));
  CHECK_EQ((linear.taps(2, {0, 4}, {true, false}).weights),
           (std::vector<double>{1, 0.75, 0.25, 0.75, 0, 0.25, 0.75, 0.25}));
  const Interpolation corners{Mode::linear, {3}, true};
  CHECK_EQ((corners.taps(5, {0, 3}, {}).inputs), (Shape{0, 2, 4, 1, 3, 4}));
  const Interpolation same{Mode::cubic, {3}};
  CHECK_EQ((same.taps(3, {1, 2}, {}).inputs), (Shape{0, 1, 2, 2}));
  CHECK_EQ((same.taps(3, {1, 2}, {}).weights), (std::vector<double>{0, 1, 0, 0}));
}

TEST(the_vectorized_kernels_ignore_a_factor_between_sizes_of_ratio_one_and_two) {
  const Interpolation nearest{Mode::nearest, {std::nullopt, 1.1}, false, true};
  CHECK_EQ((nearest.taps(5, {0, 5}, {false, false}).inputs), (Shape{0, 0, 1, 2, 3}));
  CHECK_EQ((nearest.taps(5, {0, 5}, {false, true}).inputs), (Shape{0, 1, 2, 3, 4}));
}
