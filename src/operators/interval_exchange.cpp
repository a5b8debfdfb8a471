#include "operators/interval_exchange.hpp"

#include <stdexcept>

#include "geometry/text.hpp"

namespace distdl::operators {

IntervalExchangePrimitive::IntervalExchangePrimitive(std::string layer, MPI_Comm root, const Partition& x,
                                                     const Partition& y,
                                                     std::vector<std::vector<geometry::Interval>> wanted,
                                                     std::vector<bool> periodic, double fill)
    : ExchangePrimitive(std::move(layer), root, x, y, std::move(periodic), fill, true), wanted_(std::move(wanted)) {
  Shape counts;
  for (const auto& along : wanted_) {
    counts.push_back(static_cast<std::int64_t>(along.size()));
    bounds_.push_back(std::make_shared<std::vector<geometry::Interval>>(geometry::bounds_of(along)));
  }
  if (x.shape.size() != y.shape.size() || counts != y.shape) {
    throw std::invalid_argument(name() + ": P_x has shape " + geometry::text(x.shape) + " and P_y " +
                                geometry::text(y.shape) + ", but " + geometry::text(counts) +
                                " intervals are wanted; one is needed for each place along each dimension of P_y");
  }
}

geometry::Wanted IntervalExchangePrimitive::wanted(const std::vector<geometry::Blocks>&) const {
  geometry::Wanted wanted;
  for (const auto& along : bounds_) {
    wanted.bounds.push_back({static_cast<std::int64_t>(along->size()),
                             [along](std::int64_t i) { return (*along)[static_cast<std::size_t>(i)]; }});
  }
  wanted.exact = [this](std::int64_t worker) {
    const auto index = y_.grid.index(worker);
    geometry::Box box;
    for (std::size_t d = 0; d < index.size(); ++d) box.push_back(wanted_[d][static_cast<std::size_t>(index[d])]);
    return box;
  };
  return wanted;
}

}  // namespace distdl::operators
