// A layer's call as one rank sees it, and the calls that all layers refuse.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "agreement/input.hpp"

namespace distdl::agreement {

struct LayerFacts {
  std::vector<Input> tensors = {};     // in the order of their names
  std::vector<Input> parameters = {};  // that may take part in differentiation
  std::string own = {};                // what else has to be equal on all ranks, in words
  /// The number of one rank in a call that draws random numbers, and 0 on all others. Whether there is one has to be
  /// equal on all ranks.
  std::optional<std::int64_t> broadcast = {};
  std::vector<Input> buffers = {};
  std::size_t own_buffers = 0;  // of the layer itself; a rank may have deleted one
  Input problem = {};           // an error that this rank met before it knew all facts
};

/// The facts, if the call can be made; otherwise facts with nothing but the errors, which all ranks throw. `optional`
/// says which tensors may be absent. Not collective.
LayerFacts facts_or_errors(LayerFacts facts, const std::vector<bool>& optional);

}  // namespace distdl::agreement
