// ResizeExchange: every worker receives the interval of inputs that its block of outputs reads, along each dimension
// that is resized. Pooling and interpolation over blocks are this exchange and then the local layer, without padding.
#pragma once

#include "geometry/resizing.hpp"
#include "operators/region_exchange.hpp"

namespace distdl::operators {

class ResizeExchangePrimitive final : public ExchangePrimitive {
 public:
  /// One resizing for each of the last dimensions of P_x; along the dimensions before them blocks stay as they are. The
  /// outputs are in balanced blocks on P_x, or in blocks aligned with the input's. What they read beyond the tensor is
  /// filled.
  ResizeExchangePrimitive(std::string layer, MPI_Comm root, const Partition& x,
                          std::vector<geometry::Resizing> resizings, double fill, bool aligned);

  /// The blocks of the outputs, by dimension; empty before the first call and outside of P_x.
  std::vector<geometry::Blocks> outputs() const;

 private:
  geometry::Wanted wanted(const std::vector<geometry::Blocks>& blocks) const override;
  std::vector<geometry::Blocks> outputs(const std::vector<geometry::Blocks>& blocks) const;

  std::vector<geometry::Resizing> resizings_;
  bool aligned_;
};

}  // namespace distdl::operators
