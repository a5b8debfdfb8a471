#include <numeric>

#include "../check.hpp"
#include "geometry/blocks.hpp"
#include "geometry/resizing.hpp"
#include "geometry/sliding.hpp"
#include "geometry/window.hpp"

using namespace distdl::geometry;

namespace {

using Numbers = std::vector<std::int64_t>;

/// Outputs first, first + 1, ... of a convolution with as many zeros on both sides as are wanted, by its definition.
Numbers convolution(const Numbers& inputs, const Numbers& kernel, const Window& window, Interval outputs) {
  Numbers results;
  for (auto o = outputs.start; o < outputs.stop; ++o) {
    std::int64_t sum = 0;
    for (std::int64_t j = 0; j < std::ssize(kernel); ++j) {
      const auto at = o * window.stride - window.padding_left + j * window.dilation;
      if (0 <= at && at < std::ssize(inputs)) {
        sum += kernel[static_cast<std::size_t>(j)] * inputs[static_cast<std::size_t>(at)];
      }
    }
    results.push_back(sum);
  }
  return results;
}

Numbers part(const Numbers& all, Interval of) { return {all.begin() + of.start, all.begin() + of.stop}; }

/// Different numbers, so that no two wrong ones add up to the right sum.
Numbers powers(std::int64_t count, std::int64_t factor) {
  Numbers numbers(static_cast<std::size_t>(count), 1);
  std::partial_sum(numbers.begin(), numbers.end(), numbers.begin(),
                   [factor](auto before, auto) { return before * factor % 10007; });
  return numbers;
}

Sliding sliding(const Window& window, const Blocks& inputs, const Blocks& outputs) {
  Sliding made{window.kernel, window.stride, window.dilation, {}, {}, {}};
  for (std::int64_t i = 0; i < inputs.count(); ++i) {
    made.blocks.push_back(inputs.at(i));
    made.outputs.push_back(outputs.at(i));
    made.reads.push_back(window.reads(inputs.extent(), outputs.at(i)));
  }
  return made;
}

void for_every_small_sliding(const auto& check) {
  for (std::int64_t kernel = 1; kernel < 6; ++kernel) {
    for (std::int64_t stride = 1; stride < 4; ++stride) {
      for (std::int64_t dilation = 1; dilation < 4; ++dilation) {
        for (std::int64_t padding = 0; padding < 5; ++padding) {
          for (std::int64_t n = 1; n < 25; n += 1 + n / 8) {
            const Window window{kernel, stride, padding, padding, dilation};
            if (window.outputs(n) < 1) continue;
            for (std::int64_t count = 1; count < 4; ++count) {
              const auto blocks = Blocks::balanced(n, count);
              check(window, blocks, Blocks::balanced(window.outputs(n), count));
              check(window, blocks, aligned_blocks(window, blocks));
            }
          }
        }
      }
    }
  }
}

}  // namespace

TEST(what_the_block_and_its_halo_give_adds_up_to_the_outputs) {
  std::int64_t fitting = 0;
  for_every_small_sliding([&](const Window& window, const Blocks& blocks, const Blocks& outputs) {
    const auto one = sliding(window, blocks, outputs);
    if (!one.fits()) return;
    fitting += one.has_halos();
    const auto inputs = powers(blocks.extent(), 7), kernel = powers(window.kernel, 11);
    for (std::size_t i = 0; i < one.blocks.size(); ++i) {
      const auto block = one.blocks[i];
      auto own = window;
      own.padding_left = own.padding_right = one.padding(i).value();
      auto sums = convolution(part(inputs, block), kernel, own, {0, one.outputs[i].size()});
      const auto [left, right] = one.halo(i);
      for (const Interval halo : {Interval{-left, 0}, Interval{block.size(), block.size() + right}}) {
        if (halo.empty()) continue;
        const auto share = one.share(i, halo);
        auto alone = window;
        alone.kernel = share.taps.size();
        alone.padding_left = alone.padding_right = share.padding;
        CHECK(share.first + share.outputs.size() <= alone.outputs(halo.size()));
        const auto terms = convolution(part(inputs, halo.shifted(block.start)), part(kernel, share.taps), alone,
                                       {share.first, share.first + share.outputs.size()});
        for (std::size_t o = 0; o < terms.size(); ++o) {
          sums[static_cast<std::size_t>(share.outputs.start) + o] += terms[o];
        }
      }
      CHECK_EQ(sums, convolution(inputs, kernel, window, one.outputs[i]));
    }
  });
  CHECK(fitting > 100);
}

TEST(the_local_layer_has_the_outputs_or_there_is_no_padding) {
  for_every_small_sliding([](const Window& window, const Blocks& blocks, const Blocks& outputs) {
    const auto one = sliding(window, blocks, outputs);
    for (std::size_t i = 0; i < one.blocks.size(); ++i) {
      const auto width = one.padding(i);
      auto local = window;
      local.padding_left = local.padding_right = one.blocks[i].start - one.reads[i].start;
      const bool has_all = local.padding_left >= 0 && !one.blocks[i].empty() && !one.outputs[i].empty() &&
                           local.outputs(one.blocks[i].size()) == one.outputs[i].size();
      CHECK_EQ(width.has_value(), has_all);
      if (!width) continue;
      // Window 0 of the padded block begins with what the first output reads.
      CHECK_EQ(local.reads(one.blocks[i].size(), {0, 1}).shifted(one.blocks[i].start),
               window.reads(blocks.extent(), {one.outputs[i].start, one.outputs[i].start + 1}));
    }
  });
}

TEST(borders_are_the_halos_of_the_neighbors) {
  const Window window{5, 1, 2, 2, 1};
  const auto one = sliding(window, Blocks::of_sizes({4, 5, 6}), Blocks::of_sizes({4, 5, 6}));
  CHECK(one.halo(0) == Sliding::Widths{0, 2});
  CHECK(one.halo(1) == Sliding::Widths{2, 2});
  CHECK(one.halo(2) == Sliding::Widths{2, 0});
  CHECK(one.border(0) == Sliding::Widths{0, 2});
  CHECK(one.border(1) == Sliding::Widths{2, 2});
  CHECK(one.border(2) == Sliding::Widths{2, 0});
  CHECK(one.fits() && one.has_halos());
}

TEST(what_does_not_fit) {
  const Window window{5, 1, 2, 2, 1};
  const auto narrow = Blocks::of_sizes({4, 3, 6});  // less than both neighbors want of it
  CHECK(!sliding(window, narrow, narrow).fits());
  const Window short_kernel{1, 1, 0, 0, 1};
  const auto blocks = Blocks::of_sizes({4, 3});
  CHECK(sliding(short_kernel, blocks, blocks).fits());
  CHECK(!sliding(short_kernel, blocks, blocks).has_halos());
  const auto empty = Blocks::of_sizes({7, 0});
  CHECK(!sliding(short_kernel, empty, empty).fits());
}
