#include "base/philox.hpp"

#include "base/processors.hpp"

namespace distdl::base {

namespace {

constexpr int kRounds = 10;
constexpr int kLanes = 16;

}  // namespace

DISTDL_FOR_PROCESSORS
void philox_group(std::uint64_t key, std::uint64_t group, PhiloxWords& words) {
  std::uint32_t a[kLanes], b[kLanes], c[kLanes], d[kLanes];
  const std::uint64_t first = group * kLanes;  // of 16 counters, which differ in their low halves alone
  for (std::uint32_t i = 0; i < kLanes; ++i) {
    a[i] = static_cast<std::uint32_t>(first) + i;
    b[i] = static_cast<std::uint32_t>(first >> 32);
    c[i] = 0;
    d[i] = 0;
  }
  auto k = static_cast<std::uint32_t>(key), l = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kLanes; ++i) {
      const std::uint64_t p = std::uint64_t{0xD2511F53} * a[i], q = std::uint64_t{0xCD9E8D57} * c[i];
      a[i] = static_cast<std::uint32_t>(q >> 32) ^ b[i] ^ k;
      b[i] = static_cast<std::uint32_t>(q);
      c[i] = static_cast<std::uint32_t>(p >> 32) ^ d[i] ^ l;
      d[i] = static_cast<std::uint32_t>(p);
    }
    k += 0x9E3779B9;
    l += 0xBB67AE85;
  }
  for (std::size_t i = 0; i < kLanes; ++i) {
    words[i] = a[i];
    words[kLanes + i] = b[i];
    words[2 * kLanes + i] = c[i];
    words[3 * kLanes + i] = d[i];
  }
}

}  // namespace distdl::base
