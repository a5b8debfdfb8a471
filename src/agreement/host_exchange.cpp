#include "agreement/host_exchange.hpp"

#include "agreement/voting.hpp"
#include "base/hash.hpp"
#include "comm/gather_texts.hpp"
#include "comm/vote.hpp"
#include "comm/waiting.hpp"

namespace distdl::agreement {

namespace {

constexpr std::int64_t kComparison = -1;  // no operator's call has this number

}  // namespace

HostExchange::HostExchange(MPI_Comm root, std::vector<int> ranks)
    : root_(root), ranks_(std::move(ranks)), rank_set_(rank_set_of(root, ranks_)) {}

std::pair<bool, std::vector<std::string>> HostExchange::compare(const std::string& what,
                                                                const std::string& text) const {
  const auto lock = rank_set_.lock();
  const comm::Operation operation({.name = what, .communicator = rank_set_.communicator.get()});
  const auto outcome = vote(rank_set_, {.call = kComparison, .value = base::hash_of(text)}, [&] { return what; });
  if (outcome.disagreement == comm::Disagreement::none) return {true, {}};
  return {false, gather(text)};
}

std::vector<std::string> HostExchange::gather(std::string bytes) const {
  const auto lock = rank_set_.lock();
  const comm::Operation operation({.name = "an exchange of small data", .communicator = rank_set_.communicator.get()});
  return in_order_of(ranks_, rank_set_, comm::gather_texts(*rank_set_.communicator, std::move(bytes)));
}

MPI_Comm HostExchange::view(const std::vector<int>& shape) const {
  const auto lock = rank_set_.lock();
  return comm::communicator(root_, ranks_)->view(shape);
}

MPI_Comm HostExchange::apart() const {
  const auto lock = rank_set_.lock();
  return comm::communicator(root_, ranks_)->apart();
}

}  // namespace distdl::agreement
