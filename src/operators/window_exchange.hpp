// WindowExchange: every worker receives what the sliding windows of its block of outputs read. Convolution and pooling
// over blocks are this exchange and then the local layer, without padding.
#pragma once

#include "geometry/window.hpp"
#include "operators/region_exchange.hpp"

namespace distdl::operators {

class WindowExchangePrimitive final : public ExchangePrimitive {
 public:
  /// One window for each of the last dimensions of P_x; along the dimensions before them blocks stay as they are. The
  /// outputs are in balanced blocks on P_x. The padding is wrapped in periodic dimensions and filled in the others.
  WindowExchangePrimitive(std::string layer, MPI_Comm root, const Partition& x, std::vector<geometry::Window> windows,
                          bool periodic, double fill);

  /// The blocks of the outputs, by dimension; empty before the first call and outside of P_x.
  std::vector<geometry::Blocks> outputs() const;

 private:
  geometry::Wanted wanted(const std::vector<geometry::Blocks>& blocks) const override;
  std::vector<geometry::Blocks> outputs(const std::vector<geometry::Blocks>& blocks) const;

  std::vector<geometry::Window> windows_;
};

}  // namespace distdl::operators
