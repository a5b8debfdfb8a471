#include "geometry/blocks.hpp"

#include <stdexcept>
#include <string>
#include <utility>

namespace distdl::geometry {

Interval balanced_block(std::int64_t n, std::int64_t p, std::int64_t i) {
  if (n < 0 || p < 1 || i < 0 || i >= p) {
    throw std::invalid_argument("balanced block: worker " + std::to_string(i) + " of " + std::to_string(p) +
                                " over extent " + std::to_string(n) +
                                "; need extent >= 0, workers >= 1 and 0 <= worker < workers");
  }
  const auto base = n / p, extra = n % p;
  const auto start = i * base + std::min(i, extra);
  return {start, start + base + (i < extra ? 1 : 0)};
}

Blocks Blocks::balanced(std::int64_t extent, std::int64_t count) {
  balanced_block(extent, count, 0);  // checks the values
  Blocks blocks;
  blocks.extent_ = extent;
  blocks.count_ = count;
  return blocks;
}

Blocks Blocks::of_sizes(const Shape& sizes) {
  std::vector<std::int64_t> offsets{0};
  offsets.reserve(sizes.size() + 1);
  for (const auto size : sizes) {
    if (size < 0) throw std::invalid_argument("block of negative size " + std::to_string(size));
    offsets.push_back(offsets.back() + size);
  }
  Blocks blocks;
  blocks.count_ = static_cast<std::int64_t>(sizes.size());
  blocks.extent_ = offsets.back();
  blocks.offsets_ = std::make_shared<const std::vector<std::int64_t>>(std::move(offsets));
  return blocks;
}

Interval Blocks::at(std::int64_t i) const {
  if (!offsets_) return balanced_block(extent_, count_, i);
  const auto k = static_cast<std::size_t>(i);
  return {offsets_->at(k), offsets_->at(k + 1)};
}

Shape Blocks::sizes() const {
  Shape sizes;
  for (std::int64_t i = 0; i < count_; ++i) sizes.push_back(at(i).size());
  return sizes;
}

}  // namespace distdl::geometry
