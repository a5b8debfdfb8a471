#include "geometry/matching.hpp"

#include <algorithm>
#include <stdexcept>

#include "base/text.hpp"

namespace distdl::geometry {

namespace {

Shape reversed_if(bool reverse, Shape values) {
  if (reverse) std::reverse(values.begin(), values.end());
  return values;
}

std::string describe(const Matching::Side& side) {
  return side.name + " has shape " + base::text(side.shape) +
         (side.transpose ? " (read transposed: " + base::text(reversed_if(true, side.shape)) + ")" : "");
}

}  // namespace

Matching::Matching(const std::string& operation, Side one, Side many)
    : one_(std::move(one)), many_(std::move(many)), one_grid_(one_.shape), many_grid_(many_.shape) {
  one_read_ = reversed_if(one_.transpose, one_.shape);
  many_read_ = Grid(reversed_if(many_.transpose, many_.shape));
  const auto& many_shape = many_read_.shape();
  const auto values = operation + ": " + describe(one_) + " and " + describe(many_);
  if (one_read_.size() > many_shape.size()) {
    throw std::invalid_argument(values + "; " + one_.name + " must not have more dimensions than " + many_.name);
  }
  one_read_.insert(one_read_.begin(), many_shape.size() - one_read_.size(), 1);
  for (std::size_t d = 0; d < many_shape.size(); ++d) {
    if (one_read_[d] != 1 && one_read_[d] != many_shape[d]) {
      throw std::invalid_argument(values + "; in dimension " + std::to_string(d) + " of " + base::text(many_shape) +
                                  ", " + one_.name + " has " + std::to_string(one_read_[d]) + ", but must have 1" +
                                  (many_shape[d] == 1 ? "" : " or " + std::to_string(many_shape[d])));
    }
  }
}

std::int64_t Matching::one_of(std::int64_t many_rank) const {
  auto index = reversed_if(many_.transpose, many_grid_.index(many_rank));
  for (std::size_t d = 0; d < index.size(); ++d) {
    if (one_read_[d] == 1) index[d] = 0;
  }
  index.erase(index.begin(), index.end() - one_grid_.dim());
  return one_grid_.rank(reversed_if(one_.transpose, std::move(index)));
}

std::vector<std::int64_t> Matching::many_of(std::int64_t one_rank) const {
  auto index = reversed_if(one_.transpose, one_grid_.index(one_rank));
  index.insert(index.begin(), one_read_.size() - index.size(), 0);
  std::vector<std::int64_t> spread;  // the dimensions along which the worker of the `one` side meets several
  for (std::size_t d = 0; d < index.size(); ++d) {
    if (one_read_[d] == 1) spread.push_back(static_cast<std::int64_t>(d));
  }
  std::vector<std::int64_t> ranks;
  for (const auto read : many_read_.ranks_along(many_read_.rank(index), spread)) {
    ranks.push_back(many_grid_.rank(reversed_if(many_.transpose, many_read_.index(read))));
  }
  return ranks;
}

}  // namespace distdl::geometry
