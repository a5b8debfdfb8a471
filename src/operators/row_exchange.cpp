#include "operators/row_exchange.hpp"

#include <numeric>
#include <stdexcept>

#include "operators/region_exchange.hpp"

namespace distdl::operators {

namespace {

/// A matrix with this number of rows. The first counts[0] rows belong to the first place, and so on.
RegionExchange::SidePtr side(const at::Tensor& x, std::int64_t rows, const std::vector<std::int64_t>& counts,
                             const std::vector<int>& places) {
  auto made = std::make_shared<RegionExchange::Side>();
  made->local.sizes = {rows, x.size(1)};
  made->local.dtype = x.scalar_type();
  std::int64_t first = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0 && x.size(1) > 0) {
      made->messages.push_back({places[i], {{first, first + counts[i]}, {0, x.size(1)}}});
    }
    first += counts[i];
  }
  return made;
}

}  // namespace

RowExchange::RowExchange(std::string layer, MPI_Comm root, const std::vector<int>& ranks)
    : id_(std::make_shared<OperatorId>(std::move(layer), rank_set_of(root, ranks))) {
  std::vector<int> in_order(id_->rank_set.ranks.size());
  std::iota(in_order.begin(), in_order.end(), 0);
  places_ = in_order_of(ranks, id_->rank_set, in_order);
}

OperatorPtr RowExchange::between(const at::Tensor& x, const std::vector<std::int64_t>& sent,
                                 const std::vector<std::int64_t>& received) const {
  const auto all = std::accumulate(sent.begin(), sent.end(), std::int64_t{0});
  if (!id_->rank_set.communicator || sent.size() != places_.size() || received.size() != places_.size() ||
      x.dim() != 2 || all > x.size(0)) {
    throw std::invalid_argument(id_->name + ": the numbers of rows that are sent and received do not fit the ranks");
  }
  comm::refuse_abandoned(*id_->rank_set.communicator);
  // Not in pieces: no rank knows whether others use devices.
  const auto arriving = std::accumulate(received.begin(), received.end(), std::int64_t{0});
  return c10::make_intrusive<RegionExchange>(id_, false, side(x, x.size(0), sent, places_),
                                             side(x, arriving, received, places_), 0.0, true, false);
}

}  // namespace distdl::operators
