#include "agreement/tensor_checks.hpp"

#include <algorithm>
#include <stdexcept>

#include "base/errors.hpp"
#include "base/text.hpp"

namespace distdl::agreement {

using base::text;

namespace {

std::string worker_text(const OperatorId& id, const Placement& placement, std::int64_t worker) {
  return "rank " + std::to_string(id.rank_set.user_rank(placement.rank_of(worker))) + " (index " +
         text(placement.grid.index(worker)) + " of " + placement.name + ")";
}

}  // namespace

c10::ScalarType check_roles(const OperatorId& id, const Placement& input, const GlobalStructure& structure) {
  const auto& first = input.of(structure, 0);
  for (std::int64_t worker = 1; worker < input.grid.size(); ++worker) {
    const auto& tensor = input.of(structure, worker);
    const auto differ = [&](const char* what, const std::string& had, const std::string& expected) {
      return id.name + ": " + worker_text(id, input, worker) + " has " + what + " " + had + ", but " +
             worker_text(id, input, 0) + " has " + expected;
    };
    if (tensor.dtype != first.dtype) {
      throw base::TypeError(differ("dtype", c10::toString(tensor.dtype), c10::toString(first.dtype)) +
                            "; all blocks of a tensor have one dtype");
    }
    if (tensor.sizes.size() != first.sizes.size()) {
      throw std::invalid_argument(differ("a tensor of shape", text(tensor.sizes), text(first.sizes)) +
                                  "; all blocks of a tensor have the same number of dimensions");
    }
  }
  for (std::int64_t worker = 0; worker < input.grid.size(); ++worker) {
    if (!input.of(structure, worker).present) {
      throw std::invalid_argument(id.name + ": " + worker_text(id, input, worker) + " is called without a tensor of " +
                                  input.name);
    }
  }
  std::vector<bool> is_worker(structure.size(), false);
  for (std::size_t worker = 0; worker < input.ranks.size(); ++worker) {
    is_worker[static_cast<std::size_t>(input.ranks[worker])] = true;
  }
  for (std::size_t r = 0; r < structure.size(); ++r) {
    if (structure[r].numel() != 0 && !is_worker[r]) {
      throw std::invalid_argument(id.name + ": rank " + std::to_string(id.rank_set.ranks[r]) + " is not in " +
                                  input.name + " but passes a tensor of shape " + text(structure[r].sizes) +
                                  "; ranks outside of " + input.name + " pass distdl.zero_volume_tensor()");
    }
  }
  return first.dtype;
}

std::vector<geometry::Blocks> check_blocks(const OperatorId& id, const Placement& input,
                                           const GlobalStructure& structure) {
  const auto& grid = input.grid;
  const auto& first = input.of(structure, 0).sizes;
  if (static_cast<std::int64_t>(first.size()) != grid.dim()) {
    throw std::invalid_argument(id.name + ": " + input.name + " has shape " + text(grid.shape()) +
                                ", but the tensor has shape " + text(first) + " on " + worker_text(id, input, 0) +
                                "; the partition must have as many dimensions as the tensor");
  }
  std::vector<Shape> sizes;
  for (std::size_t d = 0; d < first.size(); ++d) {
    sizes.emplace_back();
    Shape index(first.size(), 0);
    for (index[d] = 0; index[d] < grid.shape()[d]; ++index[d]) {
      sizes[d].push_back(input.of(structure, grid.rank(index)).sizes[d]);
    }
  }
  for (std::int64_t worker = 0; worker < grid.size(); ++worker) {
    const auto index = grid.index(worker);
    const auto& block = input.of(structure, worker).sizes;
    for (std::size_t d = 0; d < index.size(); ++d) {
      const auto expected = sizes[d][static_cast<std::size_t>(index[d])];
      if (block[d] != expected) {
        throw std::invalid_argument(id.name + ": " + worker_text(id, input, worker) + " has a block of shape " +
                                    text(block) + ", but in dimension " + std::to_string(d) +
                                    " the first worker with the same index has " + std::to_string(expected) +
                                    "; blocks side by side must have the same size");
      }
    }
  }
  std::vector<geometry::Blocks> blocks;
  std::transform(sizes.begin(), sizes.end(), std::back_inserter(blocks), geometry::Blocks::of_sizes);
  return blocks;
}

void check_equal_shapes(const OperatorId& id, const Placement& x, const std::vector<std::int64_t>& workers,
                        const GlobalStructure& structure) {
  const auto& first = x.of(structure, workers.front()).sizes;
  for (const auto worker : workers) {
    const auto& sizes = x.of(structure, worker).sizes;
    if (sizes == first) continue;
    const auto user_rank = [&](std::int64_t w) { return std::to_string(id.rank_set.user_rank(x.rank_of(w))); };
    throw std::invalid_argument(id.name + ": rank " + user_rank(worker) + " has a tensor of shape " +
                                base::text(sizes) + " and rank " + user_rank(workers.front()) + " one of shape " +
                                base::text(first) + ", which are to be summed; their shapes must be equal");
  }
}

}  // namespace distdl::agreement
