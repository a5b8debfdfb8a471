#include "operators/repartition.hpp"

#include <stdexcept>

#include "base/text.hpp"

namespace distdl::operators {

RepartitionPrimitive::RepartitionPrimitive(MPI_Comm root, const Partition& x, const Partition& y, bool preserve_batch)
    : ExchangePrimitive("Repartition", root, x, y, {}, 0.0, preserve_batch) {
  if (x_.grid.dim() != y_.grid.dim()) {
    throw std::invalid_argument(name() + ": " + x_.name + " has shape " + base::text(x_.grid.shape()) + " and " +
                                y_.name + " has shape " + base::text(y_.grid.shape()) +
                                "; they must have the same number of dimensions (add dimensions of size 1)");
  }
}

geometry::Wanted RepartitionPrimitive::wanted(const std::vector<geometry::Blocks>& blocks) const {
  geometry::Wanted wanted;
  for (std::size_t d = 0; d < blocks.size(); ++d) {
    const auto balanced = geometry::Blocks::balanced(blocks[d].extent(), y_.grid.shape()[d]);
    wanted.bounds.push_back({balanced.count(), [balanced](std::int64_t i) { return balanced.at(i); }});
  }
  return wanted;
}

}  // namespace distdl::operators
