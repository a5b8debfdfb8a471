#include "operators/window_exchange.hpp"

#include <stdexcept>

#include "geometry/text.hpp"

namespace distdl::operators {

namespace {

std::vector<bool> last_dimensions(std::size_t dims, std::size_t last, bool value) {
  std::vector<bool> values(dims, false);
  for (auto d = dims - std::min(last, dims); d < dims; ++d) values[d] = value;
  return values;
}

}  // namespace

WindowExchangePrimitive::WindowExchangePrimitive(std::string layer, MPI_Comm root, const Partition& x,
                                                 std::vector<geometry::Window> windows, bool periodic, double fill)
    : ExchangePrimitive(std::move(layer), root, x, x, last_dimensions(x.shape.size(), windows.size(), periodic), fill,
                        true),
      windows_(std::move(windows)) {
  if (x.shape.size() < windows_.size()) {
    throw std::invalid_argument(name() + ": P_x has shape " + geometry::text(x.shape) + "; it needs at least " +
                                std::to_string(windows_.size()) + " dimensions");
  }
}

std::vector<geometry::Blocks> WindowExchangePrimitive::outputs() const {
  return blocks().empty() ? blocks() : outputs(blocks());
}

std::vector<geometry::Blocks> WindowExchangePrimitive::outputs(const std::vector<geometry::Blocks>& blocks) const {
  auto outputs = blocks;
  const auto first = blocks.size() - windows_.size();
  for (std::size_t w = 0; w < windows_.size(); ++w) {
    const auto& input = blocks[first + w];
    const auto count = windows_[w].outputs(input.extent());
    if (count < 1) {
      throw std::runtime_error(name() + ": the input has " + std::to_string(input.extent()) +
                               " elements in dimension " + std::to_string(first + w) + ", padded by " +
                               std::to_string(windows_[w].padding_left) + " and " +
                               std::to_string(windows_[w].padding_right) + "; a window that reaches over " +
                               std::to_string(windows_[w].reach()) + " elements does not fit");
    }
    outputs[first + w] = geometry::Blocks::balanced(count, input.count());
  }
  return outputs;
}

geometry::Wanted WindowExchangePrimitive::wanted(const std::vector<geometry::Blocks>& blocks) const {
  geometry::Wanted wanted;
  const auto first = blocks.size() - windows_.size();
  const auto outputs = this->outputs(blocks);
  for (std::size_t d = 0; d < blocks.size(); ++d) {
    const auto own = outputs[d];
    if (d < first) {
      wanted.bounds.push_back({own.count(), [own](std::int64_t i) { return own.at(i); }});
    } else {
      const auto window = windows_[d - first];
      wanted.bounds.push_back({own.count(), [own, window](std::int64_t i) { return window.reads(own.at(i)); }});
    }
  }
  return wanted;
}

}  // namespace distdl::operators
