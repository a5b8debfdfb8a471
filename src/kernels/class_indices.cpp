#include "kernels/class_indices.hpp"

#include <algorithm>
#include <limits>

#include "base/processors.hpp"
#include "kernels/below_autograd.hpp"

namespace distdl::kernels {

namespace {

DISTDL_FOR_PROCESSORS
CountedClasses counted(const std::int64_t* indices, std::int64_t n, std::int64_t ignored, bool ignores) {
  constexpr auto most = std::numeric_limits<std::int64_t>::max(), least = std::numeric_limits<std::int64_t>::min();
  CountedClasses result{most, least, 0};
  for (std::int64_t i = 0; i < n; ++i) {
    const bool counts = !ignores || indices[i] != ignored;
    result.lowest = std::min(result.lowest, counts ? indices[i] : most);
    result.highest = std::max(result.highest, counts ? indices[i] : least);
    result.count += counts ? 1 : 0;
  }
  return result;
}

}  // namespace

CountedClasses counted_classes(const at::Tensor& target, std::optional<std::int64_t> ignored) {
  const BelowAutograd guard;
  const auto indices = target.to(at::kLong).contiguous();
  if (indices.is_cpu()) {
    return counted(indices.const_data_ptr<std::int64_t>(), indices.numel(), ignored.value_or(0), ignored.has_value());
  }
  const auto chosen = ignored ? indices.masked_select(indices.ne(*ignored)) : indices;
  if (chosen.numel() == 0) return {};
  return {chosen.min().item<std::int64_t>(), chosen.max().item<std::int64_t>(), chosen.numel()};
}

}  // namespace distdl::kernels
