// All that up to three ranks may do in a few calls, each followed by the end of the rank's program: no rank waits for
// ever, no message stays under way or is taken for another, and all ranks learn the same. See docs/round_trips.rst.
#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>

#include "../mpi_job.hpp"
#include "comm/ending.hpp"
#include "comm/gather_texts.hpp"
#include "comm/last_call.hpp"
#include "comm/status_query.hpp"
#include "comm/vote.hpp"
#include "comm/waiting.hpp"

using namespace distdl::comm;
using mpi_job::everyone;
using mpi_job::rank;
using mpi_job::size;

namespace {

// A call that a rank can send before the vote; that it cannot, as after a change; with a mistake that the vote finds;
// and another call.
constexpr std::string_view kKinds = "pcmo";

/// All programs of up to so many calls.
std::vector<std::string> programs(std::size_t calls) {
  std::vector<std::string> all{""};
  for (std::size_t i = 0; all[i].size() < calls && i < all.size(); ++i) {
    for (const char kind : kKinds) all.push_back(all[i] + kind);
  }
  return all;
}

/// The data of a call: which one it is in the program, of which operation, and from which rank.
std::int64_t data(std::size_t number, std::int64_t call, int from) {
  return static_cast<std::int64_t>(number) * 1000 + call * 10 + from;
}

void send_to_others(std::int64_t value, int tag, std::vector<int>& receivers) {
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    send_buffered(&value, sizeof(value), other, tag, *everyone());
    receivers.push_back(other);
  }
}

/// What a rank learns: for each of its calls, the disagreement and what became of early messages.
std::vector<int> run(const std::string& program) {
  std::map<std::int64_t, bool> early{{7, true}, {8, true}};  // whether all ranks could send in the last vote on a call
  std::vector<int> learned;
  for (std::size_t number = 0; number < program.size(); ++number) {
    const char kind = program[number];
    const std::int64_t call = kind == 'o' ? 8 : 7;
    const auto send = [&](int tag, std::vector<int>& receivers) {
      send_to_others(data(number, call, rank()), tag, receivers);
    };
    const auto outcome = vote(*everyone(), {.call = call,
                                            .value = kind == 'm' ? 1 + rank() : 0,
                                            .send_early = kind == 'c' ? SendEarly() : send,
                                            .early = early[call]});
    learned.push_back(10 * static_cast<int>(outcome.disagreement) + 2 * outcome.dropped +
                      outcome.early_tag.has_value());
    const bool same_call = outcome.disagreement != Disagreement::call;
    if (same_call) early[call] = outcome.all_can_send_early && !outcome.dropped;
    if (!same_call) gather_texts(*everyone(), program);
    if (outcome.disagreement != Disagreement::none) continue;
    const int tag = outcome.early_tag.value_or(5);
    std::vector<int> receivers;
    if (!outcome.early_tag) send_to_others(data(number, call, rank()), tag, receivers);
    for (int other = 0; other < size(); ++other) {
      std::int64_t value = data(number, call, rank());
      if (other != rank()) {
        MPI_Recv(&value, 1, MPI_INT64_T, other, tag, everyone()->handle(), MPI_STATUS_IGNORE);
      }
      CHECK_EQ(value, data(number, call, other));
    }
  }
  agree_on_freeing({everyone()});  // which frees nothing: it is the last vote of the program
  return learned;
}

/// Whether all ranks have learned the same of the calls that all of them made.
bool same_on_all_ranks(std::vector<int> learned) {
  int calls = static_cast<int>(learned.size());
  MPI_Allreduce(MPI_IN_PLACE, &calls, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  learned.resize(static_cast<std::size_t>(calls));
  std::vector<int> first = learned;
  MPI_Bcast(first.data(), calls, MPI_INT, 0, MPI_COMM_WORLD);
  return learned == first;
}

/// All programs of the ranks, which may change places. Of so many combinations one, from a number that DISTDL_SEED
/// draws.
void try_share(std::size_t calls, std::size_t stride) {
  const char* const seed = std::getenv("DISTDL_SEED");
  const auto all = programs(calls);
  std::size_t tried = seed == nullptr ? 0 : std::strtoull(seed, nullptr, 10) % stride;
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = a; b < all.size(); ++b) {
      for (std::size_t c = size() > 2 ? b : all.size() - 1; c < all.size(); ++c) {
        if (++tried % stride != 0) continue;
        const std::array programs_of_ranks{all[a], all[b], all[c]};
        const auto place = static_cast<std::size_t>(rank()) + tried / stride;
        CHECK(same_on_all_ranks(run(programs_of_ranks[place % static_cast<std::size_t>(size())])));
      }
    }
  }
}

TEST(what_ranks_may_do_in_two_calls) { try_share(2, size() > 2 ? 8 : 1); }

TEST(what_ranks_may_do_in_three_calls) { try_share(3, size() > 2 ? 2000 : 14); }

TEST(nothing_is_under_way) {
  int there = 0;
  for (int polls = 0; there == 0 && polls < 10; ++polls) {
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, everyone()->handle(), &there, MPI_STATUS_IGNORE);
    // No rank goes on to the vote at the end of the program, a message that another rank would find.
    MPI_Allreduce(MPI_IN_PLACE, &there, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  }
  CHECK_EQ(there, 0);
}

TEST(a_rank_at_its_end_tells_the_others_and_asks_them_no_more) {  // the last test, as there is no way back
  if (rank() != 0) {
    CHECK(vote(*everyone(), {.call = 7}).disagreement == Disagreement::call);
    CHECK_EQ(gather_texts(*everyone(), "a call").front(), std::string(kEndOfProgram));
  }
  end_of_program();
  const auto describe = [] { return Status{"is at its end", {}}; };
  CHECK(query_status(everyone().get(), -1, std::chrono::milliseconds(0), describe).ranks.empty());
}

MPI_JOB_ENDS

}  // namespace
