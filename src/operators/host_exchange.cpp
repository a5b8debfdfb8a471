#include "operators/host_exchange.hpp"

#include "comm/vote.hpp"
#include "comm/waiting.hpp"
#include "operators/placement.hpp"
#include "operators/voting.hpp"

namespace distdl::operators {

namespace {

// Not the number of any operator: those count from 1.
constexpr std::int64_t kComparison = -1;

}  // namespace

HostExchange::HostExchange(MPI_Comm root, std::vector<int> ranks)
    : root_(root), ranks_(std::move(ranks)), scope_(scope_of(root, {{"the exchange", ranks_, {}}})) {}

std::pair<bool, std::vector<std::string>> HostExchange::compare(const std::string& what,
                                                                const std::string& text) const {
  const auto lock = scope_.lock();
  comm::Ballot ballot;
  ballot.call = kComparison;
  ballot.value = comm::value_of(text);
  const comm::Operation operation(what, 0, "", scope_.communicator.get());
  if (vote(scope_, ballot, [&] { return what; }).same_value) return {true, {}};
  return {false, gather(text)};
}

std::vector<std::string> HostExchange::gather(const std::string& bytes) const {
  const auto lock = scope_.lock();
  const comm::Operation operation("an exchange of small data", 0, "", scope_.communicator.get());
  return in_order_of(ranks_, scope_, comm::gather_texts(*scope_.communicator, bytes));
}

MPI_Comm HostExchange::view(const std::vector<int>& shape) const {
  const auto lock = scope_.lock();
  return comm::communicator(root_, ranks_)->view(shape);
}

}  // namespace distdl::operators
