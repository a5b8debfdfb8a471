#include "geometry/window.hpp"

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

Interval Window::reads(Interval outputs) const {
  const auto start = outputs.start * stride - padding_left;
  const auto stop = (std::max(outputs.stop, outputs.start) - 1) * stride - padding_left + reach();
  // Reading nothing still has a place: behind what the outputs before it read, so that reads never step back.
  if (outputs.empty()) return {std::max(start, stop), std::max(start, stop)};
  return {start, stop};
}

}  // namespace distdl::geometry
