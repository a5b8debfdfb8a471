#include "operators/placement.hpp"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "comm/error.hpp"
#include "geometry/text.hpp"
#include "operators/errors.hpp"

namespace distdl::operators {

using geometry::text;

namespace {

int rank_in(MPI_Comm comm) {
  int rank = 0;
  comm::check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  return rank;
}

std::string worker_text(const Site& site, const Placement& placement, std::int64_t worker) {
  return "rank " + std::to_string(site.scope.user_rank(placement.rank_of(worker))) + " (index " +
         text(placement.grid.index(worker)) + " of " + placement.name + ")";
}

}  // namespace

Scope scope_of(MPI_Comm root, const std::vector<Partition>& partitions) {
  Scope scope;
  std::set<int> ranks;
  for (const auto& partition : partitions) ranks.insert(partition.ranks.begin(), partition.ranks.end());
  scope.ranks.assign(ranks.begin(), ranks.end());
  scope.root = root;
  if (root == MPI_COMM_NULL) return scope;
  if (ranks.contains(rank_in(root))) scope.communicator = comm::communicator(root, scope.ranks);
  return scope;
}

Placement place(const Scope& scope, const Partition& partition) {
  Placement placement{partition.name, geometry::Grid(partition.shape), {}, {}};
  if (placement.grid.size() != static_cast<std::int64_t>(partition.ranks.size())) {
    throw std::invalid_argument(partition.name + " has " + std::to_string(partition.ranks.size()) +
                                " ranks, but its shape " + text(partition.shape) + " needs " +
                                std::to_string(placement.grid.size()));
  }
  for (const auto rank : partition.ranks) {
    const auto found = std::lower_bound(scope.ranks.begin(), scope.ranks.end(), rank);
    const auto here = static_cast<int>(found - scope.ranks.begin());
    if (scope.communicator && here == scope.communicator->rank()) {
      placement.mine = static_cast<std::int64_t>(placement.ranks.size());
    }
    placement.ranks.push_back(here);
  }
  return placement;
}

comm::CommunicatorPtr group_communicator(const Scope& scope, const std::vector<int>& ranks) {
  if (ranks.size() == 1) return nullptr;
  return comm::communicator(scope.communicator->handle(), ranks);
}

c10::ScalarType check_roles(const Site& site, const Placement& input, const GlobalStructure& structure) {
  const auto& first = input.of(structure, 0);
  for (std::int64_t worker = 1; worker < input.grid.size(); ++worker) {
    const auto& one = input.of(structure, worker);
    const auto differ = [&](const char* what, const std::string& had, const std::string& expected) {
      return site.name + ": " + worker_text(site, input, worker) + " has " + what + " " + had + ", but " +
             worker_text(site, input, 0) + " has " + expected;
    };
    if (one.dtype != first.dtype) {
      throw TypeError(differ("dtype", c10::toString(one.dtype), c10::toString(first.dtype)) +
                      "; all blocks of a tensor have one dtype");
    }
    if (one.sizes.size() != first.sizes.size()) {
      throw std::invalid_argument(differ("a tensor of shape", text(one.sizes), text(first.sizes)) +
                                  "; all blocks of a tensor have the same number of dimensions");
    }
  }
  for (std::int64_t worker = 0; worker < input.grid.size(); ++worker) {
    if (!input.of(structure, worker).present) {
      throw std::invalid_argument(site.name + ": " + worker_text(site, input, worker) +
                                  " is called without a tensor of " + input.name);
    }
  }
  std::vector<bool> is_worker(structure.size(), false);
  for (const auto rank : input.ranks) is_worker[static_cast<std::size_t>(rank)] = true;
  for (std::size_t r = 0; r < structure.size(); ++r) {
    if (structure[r].numel() != 0 && !is_worker[r]) {
      throw std::invalid_argument(site.name + ": rank " + std::to_string(site.scope.ranks[r]) + " is not in " +
                                  input.name + " but passes a tensor of shape " + text(structure[r].sizes) +
                                  "; ranks outside of " + input.name + " pass distdl.zero_volume_tensor()");
    }
  }
  return first.dtype;
}

std::vector<geometry::Blocks> check_blocks(const Site& site, const Placement& input, const GlobalStructure& structure) {
  const auto& grid = input.grid;
  const auto& first = input.of(structure, 0).sizes;
  if (static_cast<std::int64_t>(first.size()) != grid.dim()) {
    throw std::invalid_argument(site.name + ": " + input.name + " has shape " + text(grid.shape()) +
                                ", but the tensor has shape " + text(first) + " on " + worker_text(site, input, 0) +
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
        throw std::invalid_argument(site.name + ": " + worker_text(site, input, worker) + " has a block of shape " +
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

Shape zero_volume(const Structure& input, bool preserve_batch) {
  if (preserve_batch && !input.sizes.empty()) return {input.sizes.front(), 0};
  return {0};
}

}  // namespace distdl::operators
