#include "operators/host_exchange.hpp"

#include "comm/vote.hpp"
#include "comm/waiting.hpp"
#include "operators/voting.hpp"

namespace distdl::operators {

namespace {

// Not the number of any operator: those count from 1.
constexpr std::int64_t kComparison = -1;

}  // namespace

HostExchange::HostExchange(MPI_Comm root, std::vector<int> ranks)
    : root_(root), ranks_(std::move(ranks)), rank_set_(rank_set_of(root, ranks_)) {}

std::pair<bool, std::vector<std::string>> HostExchange::compare(const std::string& what,
                                                                const std::string& text) const {
  const auto lock = rank_set_.lock();
  comm::Ballot ballot;
  ballot.call = kComparison;
  ballot.value = comm::value_of(text);
  const comm::Operation operation(what, 0, "", rank_set_.communicator.get());
  if (vote(rank_set_, ballot, [&] { return what; }).same_value) return {true, {}};
  return {false, gather(text)};
}

std::vector<std::string> HostExchange::gather(std::string bytes) const {
  const auto lock = rank_set_.lock();
  const comm::Operation operation("an exchange of small data", 0, "", rank_set_.communicator.get());
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

}  // namespace distdl::operators
