#include "../check.hpp"
#include "base/philox.hpp"

using namespace distdl::base;

namespace {

/// Philox4x32-10 as the paper defines it, for one counter whose upper half is 0.
std::array<std::uint32_t, 4> by_definition(std::uint64_t key, std::uint64_t counter) {
  std::array<std::uint32_t, 4> x{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0};
  auto first = static_cast<std::uint32_t>(key), second = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, first += 0x9E3779B9, second += 0xBB67AE85) {
    const auto p = std::uint64_t{0xD2511F53} * x[0], q = std::uint64_t{0xCD9E8D57} * x[2];
    x = {static_cast<std::uint32_t>(q >> 32) ^ x[1] ^ first, static_cast<std::uint32_t>(q),
         static_cast<std::uint32_t>(p >> 32) ^ x[3] ^ second, static_cast<std::uint32_t>(p)};
  }
  return x;
}

}  // namespace

TEST(the_known_answer_for_zeros) {
  // Of the tests that come with Random123, the authors' library.
  const std::array<std::uint32_t, 4> known{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  CHECK(by_definition(0, 0) == known);
  PhiloxWords words{};
  philox_group(0, 0, words);
  for (std::size_t w = 0; w < 4; ++w) CHECK(words[16 * w] == known[w]);
}

TEST(every_element_has_its_word) {
  const std::uint64_t keys[] = {0, 1, 0x123456789abcdef0, ~std::uint64_t{0}};
  const std::uint64_t groups[] = {0, 1, 77, (std::uint64_t{1} << 28) - 1, std::uint64_t{1} << 28, 0x1234567890};
  for (const auto key : keys) {
    for (const auto group : groups) {
      PhiloxWords words{};
      philox_group(key, group, words);
      for (std::uint64_t i = 0; i < 64; ++i) CHECK(words[i] == by_definition(key, group * 16 + i % 16)[i / 16]);
    }
  }
}
