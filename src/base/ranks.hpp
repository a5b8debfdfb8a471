// A list of ranks, which takes no memory where each rank follows the one before it, as in most partitions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace distdl::base {

class Ranks {
 public:
  Ranks() = default;
  explicit Ranks(std::vector<int> ranks) : first_(ranks.empty() ? 0 : ranks.front()), size_(ranks.size()) {
    const auto breaks = std::adjacent_find(ranks.begin(), ranks.end(), [](int a, int b) { return b != a + 1; });
    if (breaks != ranks.end()) list_ = std::move(ranks);
  }

  bool operator==(const Ranks&) const = default;
  std::size_t size() const { return size_; }
  int operator[](std::size_t place) const { return list_.empty() ? first_ + static_cast<int>(place) : list_[place]; }
  int at(std::size_t place) const {
    if (place >= size_) throw std::out_of_range("place " + std::to_string(place) + " of " + std::to_string(size_));
    return (*this)[place];
  }
  std::vector<int> list() const {
    std::vector<int> list;
    for (std::size_t place = 0; place < size_; ++place) list.push_back((*this)[place]);
    return list;
  }

  // Of ascending ranks only.

  /// The place of a rank; of a rank that is not in the list, where it would be.
  std::size_t place_of(int rank) const {
    if (!list_.empty()) {
      return static_cast<std::size_t>(std::lower_bound(list_.begin(), list_.end(), rank) - list_.begin());
    }
    return rank < first_ ? 0 : std::min(size_, static_cast<std::size_t>(rank - first_));
  }
  bool contains(int rank) const {
    const auto place = place_of(rank);
    return place < size_ && (*this)[place] == rank;
  }
  bool contains_all(const Ranks& others) const {
    if (others.size_ == 0) return true;
    if (list_.empty()) return contains(others[0]) && contains(others[others.size_ - 1]);
    for (std::size_t place = 0; place < others.size_; ++place) {
      if (!contains(others[place])) return false;
    }
    return true;
  }

 private:
  int first_ = 0;
  std::size_t size_ = 0;
  std::vector<int> list_;  // empty if all follow from the first
};

}  // namespace distdl::base
