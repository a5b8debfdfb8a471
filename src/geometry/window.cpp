#include "geometry/window.hpp"

#include "geometry/division.hpp"

namespace distdl::geometry {

std::int64_t Window::outputs(std::int64_t n) const {
  const auto room = n + padding_left + padding_right - reach();
  // In ceil mode the last window may hang over the right edge by less than a stride ...
  if (room < 0 && !(ceil_mode && room > -stride)) return 0;
  auto count = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  // ... but it has to start inside the input or the left padding (as torch.nn's pooling has it).
  if (ceil_mode && (count - 1) * stride >= n + padding_left) --count;
  return count;
}

std::int64_t Window::aligned(std::int64_t /*n*/, std::int64_t cut) const {
  return first_multiple(cut + padding_left - (reach() - 1) / 2, stride);
}

Interval Window::reads(std::int64_t /*n*/, Interval outputs) const {
  const auto start = outputs.start * stride - padding_left;
  const auto stop = (std::max(outputs.stop, outputs.start) - 1) * stride - padding_left + reach();
  // An empty interval has a place too: behind what the outputs before it read, so that the ends do not decrease.
  if (outputs.empty()) return {std::max(start, stop), std::max(start, stop)};
  return {start, stop};
}

std::int64_t TransposedWindow::aligned(std::int64_t /*n*/, std::int64_t cut) const {
  return first_multiple(2 * first(cut) + reach() - stride, 2);
}

Interval TransposedWindow::reads(std::int64_t n, Interval outputs) const {
  const auto padded = outputs.start + padding;
  // Where the stride is longer than the reach, there are outputs that no input adds to.
  const auto first_adding = first_multiple(padded - reach() + 1, stride);
  const auto start = std::min({first_adding, padded / stride, n - 1});
  if (outputs.empty()) return {start, start};
  return {start, std::min((outputs.stop - 1 + padding) / stride, n - 1) + 1};
}

}  // namespace distdl::geometry
