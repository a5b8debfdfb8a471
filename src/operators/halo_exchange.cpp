#include "operators/halo_exchange.hpp"

#include <algorithm>
#include <stdexcept>

#include "base/text.hpp"

namespace distdl::operators {

HaloExchangePrimitive::HaloExchangePrimitive(MPI_Comm root, const Partition& x, std::vector<Halo> halos,
                                             std::vector<bool> periodic, double fill)
    : ExchangePrimitive("HaloExchange", root, x, x, std::move(periodic), fill, true), halos_(std::move(halos)) {
  const auto workers = static_cast<std::size_t>(x_.grid.size()), dims = static_cast<std::size_t>(x_.grid.dim());
  const bool complete = halos_.size() == workers && std::all_of(halos_.begin(), halos_.end(),
                                                                [&](const Halo& halo) { return halo.size() == dims; });
  if (!complete) {
    throw std::invalid_argument(name() + ": P_x has shape " + base::text(x_.grid.shape()) +
                                "; a halo is needed for each of its workers, with a left and a right width for each "
                                "of its dimensions");
  }
  const auto is_first = [&](const Halo& halo) { return halo == halos_.front(); };
  if (std::all_of(halos_.begin(), halos_.end(), is_first)) halos_ = std::vector<Halo>{halos_.front()};
}

geometry::Wanted HaloExchangePrimitive::wanted(const std::vector<geometry::Blocks>& blocks) const {
  geometry::Wanted wanted;
  const auto workers = static_cast<std::size_t>(x_.grid.size());
  for (std::size_t d = 0; d < blocks.size(); ++d) {
    std::int64_t left = halos_.front()[d][0], right = halos_.front()[d][1];
    for (std::size_t worker = 0; worker < workers; ++worker) {
      const auto& halo = halo_of(worker)[d];
      left = std::max(left, halo[0]);
      right = std::max(right, halo[1]);
      const auto index = x_.grid.index(static_cast<std::int64_t>(worker));
      const auto block = blocks[d].at(index[d]);
      if (block.size() + halo[0] + halo[1] < 0) {
        throw std::invalid_argument(name() + ": worker " + base::text(index) + " of P_x has " +
                                    std::to_string(block.size()) + " elements in dimension " + std::to_string(d) +
                                    ", from which a halo of widths " + base::text(halo) +
                                    " cuts away more than there is");
      }
    }
    const auto own = blocks[d];
    wanted.bounds.push_back({own.count(), [own, left, right](std::int64_t i) { return own.at(i).grown(left, right); }});
  }
  wanted.exact = [this, blocks](std::int64_t worker) {
    const auto index = x_.grid.index(worker);
    geometry::Box box;
    for (std::size_t d = 0; d < blocks.size(); ++d) {
      const auto [left, right] = halo_of(static_cast<std::size_t>(worker))[d];
      box.push_back(blocks[d].at(index[d]).grown(left, right));
    }
    return box;
  };
  return wanted;
}

}  // namespace distdl::operators
