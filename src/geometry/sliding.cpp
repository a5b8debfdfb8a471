#include "geometry/sliding.hpp"

#include <algorithm>

#include "geometry/division.hpp"
#include "geometry/window.hpp"

namespace distdl::geometry {

std::optional<std::int64_t> Sliding::padding(std::size_t i) const {
  const auto width = blocks[i].start - reads[i].start;
  if (width < 0 || blocks[i].empty() || outputs[i].empty()) return std::nullopt;
  const Window window{kernel, stride, width, width, dilation};
  return window.outputs(blocks[i].size()) == outputs[i].size() ? std::optional(width) : std::nullopt;
}

Sliding::Widths Sliding::halo(std::size_t i) const {
  return {i > 0 ? blocks[i].start - reads[i].start : 0,
          i + 1 < blocks.size() ? std::max<std::int64_t>(reads[i].stop - blocks[i].stop, 0) : 0};
}

Sliding::Widths Sliding::border(std::size_t i) const {
  return {i > 0 ? halo(i - 1).right : 0, i + 1 < blocks.size() ? halo(i + 1).left : 0};
}

bool Sliding::has_halos() const {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (halo(i) != Widths{}) return true;
  }
  return false;
}

bool Sliding::fits() const {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!padding(i) || border(i).left + border(i).right > blocks[i].size()) return false;
  }
  return true;
}

Share Sliding::share(std::size_t i, Interval inputs) const {
  // Tap j of output o reads the input o * stride + j * dilation of those that begin with the padding.
  const auto padded = inputs.shifted(padding(i).value_or(0));
  Share share;
  share.outputs = {first_multiple(padded.start - (kernel - 1) * dilation, stride),
                   std::min(outputs[i].size(), first_multiple(padded.stop, stride))};
  const auto first_window = share.outputs.start * stride, last_window = (share.outputs.stop - 1) * stride;
  share.taps = {first_multiple(padded.start - last_window, dilation),
                std::min(kernel, first_multiple(padded.stop - first_window, dilation))};
  // By how much the first window begins before the inputs, and by how much the last one ends behind them.
  const auto before = padded.start - (first_window + share.taps.start * dilation);
  const auto behind = last_window + (share.taps.stop - 1) * dilation + 1 - padded.stop;
  share.first = first_multiple(std::max<std::int64_t>(behind, 0) - before, stride);
  share.padding = share.first * stride + before;
  return share;
}

}  // namespace distdl::geometry
