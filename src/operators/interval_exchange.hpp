// IntervalExchange: every worker of P_y receives the box of the tensor on P_x that it asks for, given as one interval
// along each dimension. Boxes may overlap, leave gaps and reach beyond the tensor. The adjoint adds every element to
// the element that it was copied from.
#pragma once

#include <vector>

#include "operators/region_exchange.hpp"

namespace distdl::operators {

class IntervalExchangePrimitive final : public ExchangePrimitive {
 public:
  /// Workers of y at place i along dimension d want the interval wanted[d][i]. Places beyond the tensor are wrapped
  /// in periodic dimensions and filled in the others.
  IntervalExchangePrimitive(std::string layer, MPI_Comm root, const Partition& x, const Partition& y,
                            std::vector<std::vector<geometry::Interval>> wanted, std::vector<bool> periodic,
                            double fill);

 private:
  geometry::Wanted wanted(const std::vector<geometry::Blocks>& blocks) const override;

  std::vector<std::vector<geometry::Interval>> wanted_;
};

}  // namespace distdl::operators
