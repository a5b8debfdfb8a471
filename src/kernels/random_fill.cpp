#include "kernels/random_fill.hpp"

#include <ATen/Dispatch.h>

#include <algorithm>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "base/philox.hpp"
#include "base/text.hpp"

namespace distdl::kernels {

namespace {

using base::kPhiloxGroup;
using geometry::Box;
using geometry::Shape;

/// The words of elements. It is fast where neighbors follow each other.
class Words {
 public:
  explicit Words(std::uint64_t key) : key_(key) {}

  /// Calls write(words, n) for pieces of the n elements from this number on, in order.
  template <class Write>
  void of(std::int64_t first, std::int64_t n, const Write& write) {
    while (n > 0) {
      const auto group = first / kPhiloxGroup, within = first % kPhiloxGroup;
      if (group != group_) {
        base::philox_group(key_, static_cast<std::uint64_t>(group), words_);
        group_ = group;
      }
      const auto count = std::min(n, kPhiloxGroup - within);
      write(words_.data() + within, count);
      first += count;
      n -= count;
    }
  }

 private:
  std::uint64_t key_;
  std::int64_t group_ = -1;
  base::PhiloxWords words_{};
};

void check(const at::Tensor& block, const Shape& whole, const Box& box) {
  bool fits = block.device().is_cpu() && block.is_contiguous() && box.size() == whole.size() &&
              block.sizes() == at::IntArrayRef(geometry::shape_of(box));
  for (std::size_t d = 0; fits && d < box.size(); ++d) {
    fits = 0 <= box[d].start && box[d].start <= box[d].stop && box[d].stop <= whole[d];
  }
  if (!fits) {
    throw std::invalid_argument("a block of shape " + base::text(block.sizes().vec()) +
                                " is no such block of a tensor of shape " + base::text(whole));
  }
}

/// Calls run(first, n) for all runs of elements of the box that have numbers in a row, in order.
template <class Run>
void for_each_run(const Shape& whole, const Box& box, const Run& run) {
  auto outer = box.size();  // dimensions before those that the box covers
  std::int64_t behind = 1;
  while (outer > 0 && box[outer - 1].size() == whole[outer - 1]) behind *= whole[--outer];
  if (outer == 0) return run(std::int64_t{0}, behind);
  const auto last = outer - 1;
  std::int64_t runs = 1;
  for (std::size_t d = 0; d < last; ++d) runs *= box[d].size();
  for (std::int64_t i = 0; i < runs; ++i) {
    std::int64_t first = box[last].start * behind, stride = whole[last] * behind, rest = i;
    for (auto d = last; d-- > 0;) {
      first += (box[d].start + rest % box[d].size()) * stride;
      rest /= box[d].size();
      stride *= whole[d];
    }
    run(first, box[last].size() * behind);
  }
}

template <class Element>
Element element_of(double value) {
  if constexpr (std::is_same_v<Element, bool>) return value != 0.0;
  if constexpr (std::is_same_v<Element, double>) return value;
  return static_cast<Element>(static_cast<float>(value));
}

template <class Element, class Value>
void fill(const at::Tensor& block, std::uint64_t key, const Shape& whole, const Box& box, const Value& value) {
  auto* out = block.data_ptr<Element>();
  Words words(key);
  for_each_run(whole, box, [&](std::int64_t first, std::int64_t n) {
    words.of(first, n, [&](const std::uint32_t* piece, std::int64_t count) {
      auto* const at = out;  // a copy, so that the compiler knows that it stays
      for (std::int64_t i = 0; i < count; ++i) at[i] = value(piece[i]);
      out += count;
    });
  });
}

}  // namespace

void fill_choice(const at::Tensor& block, std::uint64_t key, const Shape& whole, const Box& box,
                 std::uint64_t threshold, double below, double other) {
  check(block, whole, box);
  if (block.numel() == 0) return;
  AT_DISPATCH_FLOATING_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, block.scalar_type(), "fill_choice", [&] {
    const auto values = std::pair{element_of<scalar_t>(below), element_of<scalar_t>(other)};
    // The threshold 2^32, which all words are less than, does not fit into 32 bits.
    const auto all = threshold >> 32 != 0;
    const auto limit = static_cast<std::uint32_t>(threshold);
    fill<scalar_t>(block, key, whole, box,
                   [=](std::uint32_t word) { return all || word < limit ? values.first : values.second; });
  });
}

void fill_uniform(const at::Tensor& block, std::uint64_t key, const Shape& whole, const Box& box, double lower,
                  double step) {
  check(block, whole, box);
  if (block.numel() == 0) return;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, block.scalar_type(), "fill_uniform", [&] {
    fill<scalar_t>(block, key, whole, box,
                   [=](std::uint32_t word) { return element_of<scalar_t>(lower + static_cast<double>(word) * step); });
  });
}

}  // namespace distdl::kernels
