// Repartition: from any blocks on P_x to the balanced blocks on P_y. The adjoint moves them back.
#pragma once

#include "operators/region_exchange.hpp"

namespace distdl::operators {

class RepartitionPrimitive final : public ExchangePrimitive {
 public:
  RepartitionPrimitive(MPI_Comm root, const Partition& x, const Partition& y, bool preserve_batch);

 private:
  geometry::Wanted wanted(const std::vector<geometry::Blocks>& blocks) const override;
  bool unique() const override { return true; }
};

}  // namespace distdl::operators
