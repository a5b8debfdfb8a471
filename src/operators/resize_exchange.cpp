#include "operators/resize_exchange.hpp"

#include <stdexcept>

#include "geometry/text.hpp"

namespace distdl::operators {

namespace {

/// What the number of outputs depends on beside the size of the input; empty if it is nothing.
std::string rule_of(const geometry::Resizing& resizing) {
  const auto* const window = std::get_if<geometry::Window>(&resizing);
  if (!window) return "";
  return ". A window reaches over " + std::to_string(window->reach()) + " elements, and the padding is " +
         std::to_string(window->padding_left) + " and " + std::to_string(window->padding_right);
}

}  // namespace

ResizeExchangePrimitive::ResizeExchangePrimitive(std::string layer, MPI_Comm root, const Partition& x,
                                                 std::vector<geometry::Resizing> resizings, double fill, bool aligned)
    : ExchangePrimitive(std::move(layer), root, x, x, {}, fill, true),
      resizings_(std::move(resizings)),
      aligned_(aligned) {
  if (x.shape.size() < resizings_.size()) {
    throw std::invalid_argument(name() + ": P_x has shape " + geometry::text(x.shape) + "; it needs at least " +
                                std::to_string(resizings_.size()) + " dimensions");
  }
}

std::vector<geometry::Blocks> ResizeExchangePrimitive::outputs() const {
  return blocks().empty() ? blocks() : outputs(blocks());
}

std::vector<geometry::Blocks> ResizeExchangePrimitive::outputs(const std::vector<geometry::Blocks>& blocks) const {
  auto outputs = blocks;
  const auto first = blocks.size() - resizings_.size();
  for (std::size_t r = 0; r < resizings_.size(); ++r) {
    const auto& input = blocks[first + r];
    const auto [count, fewest] =
        std::visit([&](const auto& resizing) { return std::pair{resizing.outputs(input.extent()), resizing.fewest}; },
                   resizings_[r]);
    if (input.extent() < 1 || count < fewest) {
      throw std::runtime_error(name() + ": the input has " + std::to_string(input.extent()) +
                               " elements in dimension " + std::to_string(first + r) + " and the output would have " +
                               std::to_string(count) + "; they must have at least 1 and " + std::to_string(fewest) +
                               rule_of(resizings_[r]));
    }
    outputs[first + r] =
        aligned_ ? std::visit([&](const auto& by) { return geometry::aligned_blocks(by, input); }, resizings_[r])
                 : geometry::Blocks::balanced(count, input.count());
  }
  return outputs;
}

geometry::Wanted ResizeExchangePrimitive::wanted(const std::vector<geometry::Blocks>& blocks) const {
  geometry::Wanted wanted;
  const auto first = blocks.size() - resizings_.size();
  const auto outputs = this->outputs(blocks);
  for (std::size_t d = 0; d < blocks.size(); ++d) {
    const auto own = outputs[d];
    if (d < first) {
      wanted.bounds.push_back({own.count(), [own](std::int64_t i) { return own.at(i); }});
      continue;
    }
    wanted.bounds.push_back({own.count(), [own, n = blocks[d].extent(), resizing = resizings_[d - first]](auto i) {
                               return std::visit([&](const auto& by) { return by.reads(n, own.at(i)); }, resizing);
                             }});
  }
  if (!aligned_) return wanted;
  // Aligned blocks of outputs may be empty between others. They read nothing, at a place where other blocks read.
  std::vector<std::vector<geometry::Interval>> intervals;
  for (const auto& [count, at] : wanted.bounds) {
    auto& along = intervals.emplace_back();
    for (std::int64_t i = 0; i < count; ++i) along.push_back(at(i));
  }
  return geometry::wanted_intervals(std::move(intervals), y_.grid);
}

}  // namespace distdl::operators
