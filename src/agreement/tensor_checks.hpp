// Checks of the tensors of all ranks. All ranks know all structures, so that they throw the same errors.
#pragma once

#include <vector>

#include "agreement/operator_id.hpp"
#include "agreement/placement.hpp"
#include "geometry/blocks.hpp"

namespace distdl::agreement {

/// Checks the input of every operator: workers of `input` have tensors of one dtype and one dimension,
/// all other ranks pass zero-volume tensors. Returns the dtype.
c10::ScalarType check_roles(const OperatorId& id, const Placement& input, const GlobalStructure& structure);

/// Checks that the workers' tensors are blocks of one global tensor: of the partition's dimension, and of equal size in
/// dimension d wherever the workers' index in d is equal. Returns the blocks of each dimension.
std::vector<geometry::Blocks> check_blocks(const OperatorId& id, const Placement& input,
                                           const GlobalStructure& structure);

/// Checks that the tensors of `workers` of x, which are to be summed, have one shape.
void check_equal_shapes(const OperatorId& id, const Placement& x, const std::vector<std::int64_t>& workers,
                        const GlobalStructure& structure);

}  // namespace distdl::agreement
