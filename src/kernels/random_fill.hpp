// Random numbers by the index in a whole tensor: a block is filled without drawing the rest.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "geometry/interval.hpp"

namespace distdl::kernels {

/// Fills a contiguous block in host memory, which is this box of a whole tensor of this shape: `below` where the
/// element's word is less than the threshold, otherwise `other`. A word is one of 2^32, all equally likely; it follows
/// from the key and the element's number in the whole tensor, row-major, alone.
void fill_choice(const at::Tensor& block, std::uint64_t key, const geometry::Shape& whole, const geometry::Box& box,
                 std::uint64_t threshold, double below, double other);

/// The same with lower + word * step.
void fill_uniform(const at::Tensor& block, std::uint64_t key, const geometry::Shape& whole, const geometry::Box& box,
                  double lower, double step);

}  // namespace distdl::kernels
