// HaloExchange: every worker's block grows by a halo of what its neighbours hold. The adjoint adds the halos back.
#pragma once

#include <array>

#include "operators/region_exchange.hpp"

namespace distdl::operators {

/// For each dimension the width of the halo on the left and on the right. Negative widths cut away.
using Halo = std::vector<std::array<std::int64_t, 2>>;

class HaloExchangePrimitive final : public ExchangePrimitive {
 public:
  /// `halos` holds the halo of each worker. Where a halo reaches beyond the tensor it wraps in periodic dimensions, and
  /// is filled in the others.
  HaloExchangePrimitive(MPI_Comm root, const Partition& x, std::vector<Halo> halos, std::vector<bool> periodic,
                        double fill);

 private:
  geometry::Wanted wanted(const std::vector<geometry::Blocks>& blocks) const override;
  const Halo& halo_of(std::size_t worker) const { return halos_.size() == 1 ? halos_.front() : halos_[worker]; }

  std::vector<Halo> halos_;  // by worker, or a single halo that all workers have
};

}  // namespace distdl::operators
