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

Matching::Matching(const std::string& operation, Side roots, Side members)
    : roots_(std::move(roots)), members_(std::move(members)), root_grid_(roots_.shape), member_grid_(members_.shape) {
  roots_read_ = reversed_if(roots_.transpose, roots_.shape);
  members_read_ = Grid(reversed_if(members_.transpose, members_.shape));
  const auto& member_shape = members_read_.shape();
  const auto values = operation + ": " + describe(roots_) + " and " + describe(members_);
  if (roots_read_.size() > member_shape.size()) {
    throw std::invalid_argument(values + "; " + roots_.name + " must not have more dimensions than " + members_.name);
  }
  roots_read_.insert(roots_read_.begin(), member_shape.size() - roots_read_.size(), 1);
  for (std::size_t d = 0; d < member_shape.size(); ++d) {
    if (roots_read_[d] != 1 && roots_read_[d] != member_shape[d]) {
      throw std::invalid_argument(values + "; in dimension " + std::to_string(d) + " of " + base::text(member_shape) +
                                  ", " + roots_.name + " has " + std::to_string(roots_read_[d]) + ", but must have 1" +
                                  (member_shape[d] == 1 ? "" : " or " + std::to_string(member_shape[d])));
    }
  }
}

std::int64_t Matching::root_of(std::int64_t member_rank) const {
  auto index = reversed_if(members_.transpose, member_grid_.index(member_rank));
  for (std::size_t d = 0; d < index.size(); ++d) {
    if (roots_read_[d] == 1) index[d] = 0;
  }
  index.erase(index.begin(), index.end() - root_grid_.dim());
  return root_grid_.rank(reversed_if(roots_.transpose, std::move(index)));
}

std::vector<std::int64_t> Matching::members_of(std::int64_t root_rank) const {
  auto index = reversed_if(roots_.transpose, root_grid_.index(root_rank));
  index.insert(index.begin(), roots_read_.size() - index.size(), 0);
  std::vector<std::int64_t> spread;  // the dimensions along which a root has several members
  for (std::size_t d = 0; d < index.size(); ++d) {
    if (roots_read_[d] == 1) spread.push_back(static_cast<std::int64_t>(d));
  }
  std::vector<std::int64_t> ranks;
  for (const auto read : members_read_.ranks_along(members_read_.rank(index), spread)) {
    ranks.push_back(member_grid_.rank(reversed_if(members_.transpose, members_read_.index(read))));
  }
  return ranks;
}

}  // namespace distdl::geometry
