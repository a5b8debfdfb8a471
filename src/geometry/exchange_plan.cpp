#include "geometry/exchange_plan.hpp"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace distdl::geometry {

namespace {

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }

/// The first i in [0, count) for which `reached` holds, which must be false and then true.
template <class Predicate>
std::int64_t first_where(std::int64_t count, Predicate reached) {
  std::int64_t low = 0;
  for (auto high = count; low < high;) {
    const auto middle = low + (high - low) / 2;
    if (reached(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/// One dimension's part of a meeting of two boxes: worker `index` of the other side, `wraps` periods away.
struct Meeting {
  std::int64_t index;
  std::int64_t wraps;
};

void append_meetings(std::vector<Meeting>& meetings, const Intervals& others, Interval own, std::int64_t wraps) {
  const auto first = first_where(others.count, [&](auto i) { return others.at(i).stop > own.start; });
  const auto last = first_where(others.count, [&](auto i) { return others.at(i).start >= own.stop; });
  for (auto i = first; i < last; ++i) {
    if (!intersect(others.at(i), own).empty()) meetings.push_back({i, wraps});
  }
}

/// The owners that a wanted interval meets; `wraps` counts the periods from the owner's copy to the wanted place.
std::vector<Meeting> owners_of(Interval wanted, const Blocks& owned, bool periodic) {
  std::vector<Meeting> meetings;
  const auto n = owned.extent();
  if (wanted.empty() || n == 0) return meetings;
  const Intervals owners{owned.count(), [&](auto i) { return owned.at(i); }};
  const auto first = periodic ? floor_div(wanted.start, n) : 0;
  const auto last = periodic ? floor_div(wanted.stop - 1, n) : 0;
  for (auto k = first; k <= last; ++k) append_meetings(meetings, owners, wanted.shifted(-k * n), k);
  return meetings;
}

/// The workers that may want an owned interval.
std::vector<Meeting> wanters_of(Interval owned, const Intervals& bounds, std::int64_t extent, bool periodic) {
  std::vector<Meeting> meetings;
  if (owned.empty() || bounds.count == 0) return meetings;
  const auto first = periodic ? floor_div(bounds.at(0).start, extent) : 0;
  const auto last = periodic ? floor_div(bounds.at(bounds.count - 1).stop - 1, extent) : 0;
  for (auto k = first; k <= last; ++k) append_meetings(meetings, bounds, owned.shifted(k * extent), k);
  return meetings;
}

/// Every wrap is a message of its own. All workers know all bounds, so that all of them throw.
constexpr std::int64_t kMaxWraps = std::int64_t{1} << 16;

void refuse_many_wraps(const Blocks& owned, const Intervals& bounds, bool periodic) {
  if (!periodic || bounds.count == 0 || owned.extent() == 0) return;
  const auto start = bounds.at(0).start, stop = bounds.at(bounds.count - 1).stop;
  if ((stop - start) / owned.extent() <= kMaxWraps) return;
  throw std::invalid_argument("from " + std::to_string(start) + " to " + std::to_string(stop) + " a dimension of " +
                              std::to_string(owned.extent()) + " elements wraps around more than " +
                              std::to_string(kMaxWraps) + " times");
}

/// Calls visit(index, wraps) for every combination of the dimensions' meetings, the first dimension slowest. Both
/// sides visit in ascending wraps, so that several boxes between two workers are matched by their order.
void for_each_combination(const std::vector<std::vector<Meeting>>& meetings,
                          const std::function<void(const Shape&, const Shape&)>& visit) {
  Shape extents;
  for (const auto& along : meetings) {
    if (along.empty()) return;
    extents.push_back(static_cast<std::int64_t>(along.size()));
  }
  const Grid combinations(extents);
  Shape index(meetings.size()), wraps(meetings.size());
  for (std::int64_t c = 0; c < combinations.size(); ++c) {
    const auto choice = combinations.index(c);
    for (std::size_t d = 0; d < meetings.size(); ++d) {
      const auto& meeting = meetings[d][static_cast<std::size_t>(choice[d])];
      index[d] = meeting.index;
      wraps[d] = meeting.wraps;
    }
    visit(index, wraps);
  }
}

Box block_of(const std::vector<Blocks>& owned, const Shape& index) {
  Box box;
  for (std::size_t d = 0; d < owned.size(); ++d) box.push_back(owned[d].at(index[d]));
  return box;
}

bool empty(const Box& box) {
  return std::any_of(box.begin(), box.end(), [](const Interval& interval) { return interval.empty(); });
}

}  // namespace

Box Wanted::box(const Grid& grid, std::int64_t rank) const {
  if (exact) return exact(rank);
  const auto index = grid.index(rank);
  Box box;
  for (std::size_t d = 0; d < bounds.size(); ++d) box.push_back(bounds[d].at(index[d]));
  return box;
}

std::vector<Interval> bounds_of(const std::vector<Interval>& intervals) {
  Interval hull;
  for (const auto& interval : intervals) {
    if (interval.empty()) continue;
    hull = hull.empty() ? interval : Interval{std::min(hull.start, interval.start), std::max(hull.stop, interval.stop)};
  }
  std::vector<Interval> bounds(intervals.size());
  auto stop = hull.start, start = hull.stop;
  for (std::size_t i = 0; i < intervals.size(); ++i) {
    if (!intervals[i].empty()) stop = std::max(stop, intervals[i].stop);
    bounds[i].stop = stop;
  }
  for (auto i = intervals.size(); i-- > 0;) {
    if (!intervals[i].empty()) start = std::min(start, intervals[i].start);
    bounds[i].start = start;
  }
  return bounds;
}

Wanted wanted_intervals(std::vector<std::vector<Interval>> intervals, const Grid& targets) {
  Wanted wanted;
  for (const auto& along : intervals) {
    const auto bounds = std::make_shared<const std::vector<Interval>>(bounds_of(along));
    wanted.bounds.push_back({static_cast<std::int64_t>(bounds->size()),
                             [bounds](std::int64_t i) { return (*bounds)[static_cast<std::size_t>(i)]; }});
  }
  const auto exact = std::make_shared<const std::vector<std::vector<Interval>>>(std::move(intervals));
  wanted.exact = [exact, targets](std::int64_t rank) {
    const auto index = targets.index(rank);
    Box box;
    for (std::size_t d = 0; d < index.size(); ++d) box.push_back((*exact)[d][static_cast<std::size_t>(index[d])]);
    return box;
  };
  return wanted;
}

ExchangePlan plan_exchange(const std::vector<Blocks>& owned, const Wanted& wanted, std::optional<std::int64_t> source,
                           std::optional<std::int64_t> target, const std::vector<bool>& periodic) {
  const auto dims = owned.size();
  Shape source_shape, target_shape;
  for (std::size_t d = 0; d < dims; ++d) {
    source_shape.push_back(owned[d].count());
    target_shape.push_back(wanted.bounds[d].count);
  }
  const Grid sources(source_shape), targets(target_shape);
  for (std::size_t d = 0; d < dims; ++d) refuse_many_wraps(owned[d], wanted.bounds[d], periodic[d]);
  ExchangePlan plan;

  // Where an owner's block, moved by whole periods, meets what a target wants: in global, unwrapped coordinates.
  const auto meeting_box = [&](const Box& block, const Box& box, const Shape& wraps) {
    Box meeting;
    for (std::size_t d = 0; d < dims; ++d) {
      meeting.push_back(intersect(block[d].shifted(wraps[d] * owned[d].extent()), box[d]));
    }
    return meeting;
  };
  const auto local_to = [&](Box box, const Box& origin, const Shape& wraps) {
    for (std::size_t d = 0; d < dims; ++d) {
      box[d] = box[d].shifted(-origin[d].start - wraps[d] * owned[d].extent());
    }
    return box;
  };

  std::vector<std::vector<Meeting>> meetings(dims);
  if (source) {
    const auto own = block_of(owned, sources.index(*source));
    plan.input_shape = shape_of(own);
    for (std::size_t d = 0; d < dims; ++d) {
      meetings[d] = wanters_of(own[d], wanted.bounds[d], owned[d].extent(), periodic[d]);
    }
    for_each_combination(meetings, [&](const Shape& index, const Shape& wraps) {
      const auto peer = targets.rank(index);
      auto box = meeting_box(own, wanted.box(targets, peer), wraps);
      if (!empty(box)) plan.sends.push_back({peer, local_to(std::move(box), own, wraps)});
    });
  }
  if (target) {
    const auto own = wanted.box(targets, *target);
    plan.output_shape = shape_of(own);
    for (std::size_t d = 0; d < dims; ++d) meetings[d] = owners_of(own[d], owned[d], periodic[d]);
    const Shape in_place(dims, 0);
    for_each_combination(meetings, [&](const Shape& index, const Shape& wraps) {
      auto box = meeting_box(block_of(owned, index), own, wraps);
      if (!empty(box)) plan.receives.push_back({sources.rank(index), local_to(std::move(box), own, in_place)});
    });
  }
  return plan;
}

bool disjoint(const std::vector<Transfer>& transfers) {
  const auto meet = [](const Box& a, const Box& b) {
    for (std::size_t d = 0; d < a.size(); ++d) {
      if (intersect(a[d], b[d]).empty()) return false;
    }
    return true;
  };
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (meet(transfers[i].region, transfers[j].region)) return false;
    }
  }
  return true;
}

std::int64_t volume(const std::vector<Transfer>& transfers) {
  std::int64_t sum = 0;
  for (const auto& transfer : transfers) sum += volume(transfer.region);
  return sum;
}

}  // namespace distdl::geometry
