#include "../check.hpp"
#include "geometry/blocks.hpp"
#include "geometry/window.hpp"

using namespace distdl::geometry;

namespace {

/// The number of outputs by the definition in torch.nn's documentation of Conv and MaxPool, by trying every output.
std::int64_t outputs_one_by_one(const Window& window, std::int64_t n) {
  std::int64_t count = 0;
  for (;; ++count) {
    const auto first = count * window.stride - window.padding_left;
    const auto end = first + window.reach();
    const bool fits = end <= n + window.padding_right;
    // In ceil mode a window may go off bounds if it starts within the left padding or the input.
    const bool hangs_over = window.ceil_mode && end - window.stride < n + window.padding_right && first < n;
    if (!fits && !hangs_over) return count;
  }
}

}  // namespace

TEST(outputs_for_every_small_window) {
  for (std::int64_t kernel = 1; kernel < 5; ++kernel) {
    for (std::int64_t stride = 1; stride < 5; ++stride) {
      for (std::int64_t padding = 0; padding <= kernel / 2; ++padding) {
        for (std::int64_t dilation = 1; dilation < 4; ++dilation) {
          for (const bool ceil_mode : {false, true}) {
            const Window window{kernel, stride, padding, padding, dilation, ceil_mode};
            for (std::int64_t n = window.reach(); n < 20; ++n) {
              CHECK_EQ(window.outputs(n), outputs_one_by_one(window, n));
            }
          }
        }
      }
    }
  }
}

TEST(nothing_fits) {
  CHECK_EQ((Window{5, 1, 0, 0, 1}.outputs(4)), 0);
  CHECK_EQ((Window{3, 1, 0, 0, 3}.outputs(6)), 0);
}

TEST(reads_are_those_of_the_first_and_the_last_output) {
  const Window window{3, 2, 1, 1, 2};  // reads 5 elements: at -1, 1, 3 first
  CHECK_EQ(window.reads(20, {0, 1}), (Interval{-1, 4}));
  CHECK_EQ(window.reads(20, {2, 5}), (Interval{3, 12}));
}

TEST(reads_never_step_back_from_block_to_block) {
  for (std::int64_t count = 1; count < 6; ++count) {
    for (std::int64_t stride = 1; stride < 6; ++stride) {
      const Window window{4, stride, 2, 2, 1};
      const auto outputs = Blocks::balanced(count, 8);
      for (std::int64_t i = 1; i < 8; ++i) {
        const auto before = window.reads(count, outputs.at(i - 1)), here = window.reads(count, outputs.at(i));
        CHECK(here.start >= before.start);
        CHECK(here.stop >= before.stop);
        CHECK_EQ(here.empty(), outputs.at(i).empty());
      }
    }
  }
}

TEST(transposed_windows_read_every_input_that_adds_to_the_outputs) {
  for (std::int64_t n = 1; n < 6; ++n) {
    for (std::int64_t kernel = 1; kernel < 4; ++kernel) {
      for (std::int64_t stride = 1; stride < 5; ++stride) {
        for (std::int64_t dilation = 1; dilation < 4; ++dilation) {
          for (std::int64_t padding = 0; padding < 3; ++padding) {
            for (std::int64_t more = 0; more < std::max(stride, dilation); ++more) {
              const TransposedWindow window{kernel, stride, padding, dilation, more};
              const auto count = window.outputs(n);
              for (std::int64_t start = 0; start < count; ++start) {
                const Interval outputs{start, std::min(start + 3, count)};
                const auto reads = window.reads(n, outputs);
                CHECK(reads.start >= 0 && reads.stop <= n && !reads.empty());
                CHECK(window.first(reads.start) <= start);
                // The output padding that the local layer needs, which has the same limit as the whole layer's.
                CHECK(outputs.stop - window.first(reads.stop - 1) - window.reach() < std::max(stride, dilation));
                for (std::int64_t i = 0; i < n; ++i) {
                  bool adds = false;
                  for (std::int64_t j = 0; j < kernel; ++j) {
                    const auto o = i * stride - padding + dilation * j;
                    adds = adds || (outputs.start <= o && o < outputs.stop);
                  }
                  CHECK(!adds || (reads.start <= i && i < reads.stop));
                }
              }
            }
          }
        }
      }
    }
  }
}
