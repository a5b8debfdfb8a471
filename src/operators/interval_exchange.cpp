#include "operators/interval_exchange.hpp"

#include <stdexcept>

#include "base/text.hpp"

namespace distdl::operators {

IntervalExchangePrimitive::IntervalExchangePrimitive(std::string layer, MPI_Comm root, const Partition& x,
                                                     const Partition& y,
                                                     std::vector<std::vector<geometry::Interval>> wanted,
                                                     std::vector<bool> periodic, double fill)
    : ExchangePrimitive(std::move(layer), root, x, y, std::move(periodic), fill, true), wanted_(std::move(wanted)) {
  Shape counts;
  for (const auto& along : wanted_) counts.push_back(static_cast<std::int64_t>(along.size()));
  if (x.shape.size() != y.shape.size() || counts != y.shape) {
    throw std::invalid_argument(name() + ": P_x has shape " + base::text(x.shape) + " and P_y " + base::text(y.shape) +
                                ", but " + base::text(counts) +
                                " intervals are wanted; one is needed for each place along each dimension of P_y");
  }
}

geometry::Wanted IntervalExchangePrimitive::wanted(const std::vector<geometry::Blocks>&) const {
  return geometry::wanted_intervals(wanted_, y_.grid);
}

}  // namespace distdl::operators
