#include "comm/vote.hpp"

#include <array>
#include <functional>

#include "comm/error.hpp"
#include "comm/waiting.hpp"

namespace distdl::comm {

std::int64_t value_of(const std::string& text) {
  return static_cast<std::int64_t>(std::hash<std::string>{}(text) >> 1);  // so that its negative is a number as well
}

Outcome vote(const Communicator& communicator, const Ballot& ballot) {
  // The maximum of a value and of its negative tells whether all ranks have the same one.
  std::array<std::int64_t, 8> votes{ballot.call,    -ballot.call,         ballot.value,         -ballot.value,
                                    ballot.changed, ballot.requires_grad, ballot.grad_disabled, ballot.has_tangent};
  const auto handle = communicator.handle();
  if (communicator.size() > 1) {
    const Waiting waiting;
    check(MPI_Allreduce(MPI_IN_PLACE, votes.data(), static_cast<int>(votes.size()), MPI_INT64_T, MPI_MAX, handle),
          "MPI_Allreduce");
  }
  return {votes[0] == -votes[1], votes[2] == -votes[3], votes[4] != 0, votes[5] != 0, votes[6] != 0, votes[7] != 0};
}

std::vector<std::string> gather_texts(const Communicator& communicator, const std::string& mine) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const auto handle = communicator.handle();
  std::vector<int> lengths(ranks), offsets(ranks);
  const int length = static_cast<int>(mine.size());
  check(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, handle), "MPI_Allgather");
  int total = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    offsets[r] = total;
    total += lengths[r];
  }
  std::string all(static_cast<std::size_t>(total), '\0');
  check(MPI_Allgatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR, handle),
        "MPI_Allgatherv");
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < ranks; ++r) {
    texts.push_back(all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(lengths[r])));
  }
  return texts;
}

}  // namespace distdl::comm
