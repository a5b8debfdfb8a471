// Where a tensor lives: a partition as the operators see it.
#pragma once

#include <mpi.h>

#include <optional>
#include <vector>

#include "geometry/blocks.hpp"
#include "geometry/grid.hpp"
#include "operators/operator_id.hpp"
#include "operators/structure.hpp"

namespace distdl::operators {

/// A partition as it comes from the user: workers in order, as ranks of the communicator that it was made from.
struct Partition {
  std::string name;  // how messages call it
  std::vector<int> ranks;
  Shape shape;
};

/// A partition within a scope: worker i of the grid is rank `ranks[i]` of the scope's communicator.
struct Placement {
  std::string name;
  geometry::Grid grid;
  std::vector<int> ranks;
  std::optional<std::int64_t> mine;  // this rank's worker, if it has one

  int rank_of(std::int64_t worker) const { return ranks.at(static_cast<std::size_t>(worker)); }
  const Structure& of(const GlobalStructure& structure, std::int64_t worker) const {
    return structure.at(static_cast<std::size_t>(rank_of(worker)));
  }
};

/// The scope of an operator on these partitions: their ranks, each once. Makes its communicator: collective
/// over these ranks. A rank outside of them, or without a root communicator, gets a scope with no communicator.
Scope scope_of(MPI_Comm root, const std::vector<Partition>& partitions);
Placement place(const Scope& scope, const Partition& partition);

/// The private communicator of some workers of a placement (scope ranks), or null for a single one.
comm::CommunicatorPtr group_communicator(const Scope& scope, const std::vector<int>& ranks);

/// Checks what holds for the input of every operator: workers of `input` have tensors of one dtype and one dimension,
/// all other ranks pass zero-volume tensors. Returns the dtype.
c10::ScalarType check_roles(const Site& site, const Placement& input, const GlobalStructure& structure);

/// Checks that the workers' tensors are blocks of one global tensor: of the partition's dimension, and of equal size in
/// dimension d wherever the workers' index in d is equal. Returns the blocks of each dimension.
std::vector<geometry::Blocks> check_blocks(const Site& site, const Placement& input, const GlobalStructure& structure);

/// The zero-volume tensor that stands for "nothing here": [batch, 0], or [0].
Shape zero_volume(const Structure& input, bool preserve_batch);

}  // namespace distdl::operators
