// Random numbers that each element of a tensor has by itself, from its number in the whole tensor.
#pragma once

#include <array>
#include <cstdint>

namespace distdl::base {

/// The words that so many elements in a row share. The first of them has a number that is divisible by it.
constexpr std::int64_t kPhiloxGroup = 64;

using PhiloxWords = std::array<std::uint32_t, kPhiloxGroup>;

/// The words of elements group * 64 to group * 64 + 63, by Philox4x32-10: word w of the counters group * 16 to
/// group * 16 + 15 belongs to 16 elements in a row, from element w * 16 of the group on.
///
/// Source: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011).
void philox_group(std::uint64_t key, std::uint64_t group, PhiloxWords& words);

}  // namespace distdl::base
