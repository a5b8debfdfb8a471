// What ranks learn from a vote. tests/run.sh runs it on several ranks.
#include <stdexcept>
#include <string>

#include "../mpi_job.hpp"
#include "comm/departing.hpp"
#include "comm/failure.hpp"
#include "comm/vote.hpp"

using namespace distdl::comm;
using mpi_job::everyone;
using mpi_job::rank;
using mpi_job::size;

namespace {

TEST(the_same_ballot_on_all_ranks) {
  const auto outcome = vote(*everyone(), {.call = 7, .value = value_of("text")});
  CHECK(outcome.same_call);
  CHECK(outcome.same_value);
  CHECK(outcome.change == Change::none);
  CHECK(!outcome.any_requires_grad && !outcome.any_grad_disabled && !outcome.any_has_tangent);
}

TEST(the_largest_change_of_any_rank) {
  const auto mine = rank() == 0 ? Change::structure : Change::derivatives;
  CHECK(vote(*everyone(), {.call = 7, .change = mine}).change == Change::structure);
  const auto others = rank() == 0 ? Change::none : Change::derivatives;
  CHECK(vote(*everyone(), {.call = 7, .change = others}).change == (size() > 1 ? Change::derivatives : Change::none));
}

TEST(what_any_rank_has) {
  const bool last = rank() == size() - 1;
  const auto outcome = vote(*everyone(), {.call = 7, .requires_grad = last, .has_tangent = last});
  CHECK(outcome.any_requires_grad && outcome.any_has_tangent);
  CHECK(!outcome.any_grad_disabled);
}

TEST(different_calls_and_values) {
  const auto outcome = vote(*everyone(), {.call = rank() == 0 ? 7 : 10, .value = value_of("a")});
  CHECK_EQ(outcome.same_call, size() == 1);
  CHECK(outcome.same_value);
  const auto texts = vote(*everyone(), {.call = 7, .value = value_of(rank() == 0 ? "a" : "b")});
  CHECK(texts.same_call);
  CHECK_EQ(texts.same_value, size() == 1);
}

TEST(texts_by_rank) {
  const std::string mine(static_cast<std::size_t>(rank()), 'x');
  const auto texts = gather_texts(*everyone(), mine);
  CHECK_EQ(texts.size(), size());
  for (std::size_t r = 0; r < texts.size(); ++r) CHECK_EQ(texts[r].size(), r);
}

TEST(votes_are_counted_where_others_are_asked) {
  const auto before = votes();
  vote(*everyone(), {.call = 7});
  CHECK_EQ(votes() - before, size() > 1 ? 1 : 0);
}

/// Sends this rank's number to all ranks.
SendAhead to_all_ranks() {
  return [](int tag, std::vector<int>& receivers) {
    const int number = rank();
    for (int other = 0; other < size(); ++other) {
      depart(&number, sizeof(number), other, tag, *everyone());
      receivers.push_back(other);
    }
  };
}

/// Whether anything is under way to this rank, from any other. No rank goes on, to its next vote, before all have
/// looked.
bool anything_there(const Communicator& communicator = *everyone()) {
  MPI_Barrier(communicator.handle());
  int there = 0;
  for (int looks = 0; there == 0 && looks < 10; ++looks) {  // the first may do no more than fetch what has arrived
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator.handle(), &there, MPI_STATUS_IGNORE);
  }
  MPI_Barrier(communicator.handle());
  return there != 0;
}

TEST(what_all_ranks_sent_ahead_is_received) {
  const auto outcome = vote(*everyone(), {.call = 7, .could_send = true, .send = to_all_ranks()});
  CHECK(outcome.all_could_send && !outcome.dropped);
  CHECK_EQ(outcome.ahead.has_value(), size() > 1);
  for (int other = 0; outcome.ahead && other < size(); ++other) {
    int number = -1;
    MPI_Recv(&number, 1, MPI_INT, other, *outcome.ahead, everyone()->handle(), MPI_STATUS_IGNORE);
    CHECK_EQ(number, other);
  }
  CHECK(!anything_there());
}

TEST(what_some_ranks_sent_ahead_is_dropped) {
  const bool first = rank() == 0;
  const auto fails = [](int tag, std::vector<int>& receivers) {
    depart(&tag, sizeof(tag), 0, tag, *everyone());
    receivers.push_back(0);
    throw std::runtime_error("no memory");
  };
  const std::vector<Ballot> ballots{
      {.call = 7, .could_send = !first, .send = first ? SendAhead() : to_all_ranks()},
      {.call = 7, .could_send = true, .send = first ? SendAhead(fails) : to_all_ranks()},
      {.call = first ? 7 : 10, .could_send = true, .send = to_all_ranks()},
      {.call = 7, .value = rank(), .could_send = true, .send = to_all_ranks()},
      {.call = 7, .requires_grad = first, .grad_disabled = !first, .could_send = true, .send = to_all_ranks()},
  };
  for (const auto& ballot : ballots) {
    const auto outcome = vote(*everyone(), ballot);
    CHECK_EQ(outcome.dropped, size() > 1);
    CHECK(!outcome.ahead);
    CHECK(!anything_there());
  }
}

TEST(a_rank_that_makes_no_further_call_takes_part_in_dropping) {
  std::vector<int> reversed;
  for (int one = size() - 1; one >= 0; --one) reversed.push_back(one);
  const auto others = communicator(MPI_COMM_WORLD, reversed);
  if (rank() != 0) {
    const auto send = [&](int tag, std::vector<int>& receivers) {
      for (int to = 0; to < size(); ++to) {
        depart(&tag, sizeof(tag), to, tag, *others);
        receivers.push_back(to);
      }
    };
    const auto outcome = vote(*others, {.call = 7, .could_send = true, .send = send});
    CHECK(!outcome.same_call && outcome.dropped && !outcome.ahead);
    CHECK(gather_texts(*others, "a call").back().find("freeing") != std::string::npos);
  }
  agree_on_freeing({others});
  CHECK(!anything_there(*others));
}

TEST(hosts_are_chosen_for_communicators_that_are_made_later) {
  const std::vector<int> all_but_last = [] {
    std::vector<int> ranks;
    for (int one = 0; one < size() - 1; ++one) ranks.push_back(one);
    return ranks;
  }();
  if (rank() == size() - 1) return;
  set_hosts(rank() == 0 ? Hosts::several : Hosts::names);
  CHECK_EQ(communicator(MPI_COMM_WORLD, all_but_last)->spans_hosts(), size() > 2);
  set_hosts(Hosts::names);
  CHECK(!everyone()->spans_hosts());
}

TEST(no_vote_after_one_was_given_up) {
  const std::vector<int> me{rank()};
  const auto alone = communicator(MPI_COMM_WORLD, me);
  alone->abandon();
  CHECK_THROWS(vote(*alone, {.call = 7}), "was given up");
}

TEST(all_votes_of_a_rank_that_is_out_of_step_say_so) {  // the last test, as there is no way back
  if (rank() == 0) {
    fall_out_of_step("no memory");
    fall_out_of_step("what follows from it");
    CHECK_EQ(out_of_step(), std::string("no memory"));
  }
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto outcome = vote(*everyone(), {.call = 7, .could_send = true, .send = to_all_ranks()});
    CHECK(outcome.same_call);
    CHECK_EQ(outcome.any_out_of_step, size() > 1);
    CHECK_EQ(outcome.dropped, size() > 1);
    CHECK(!anything_there());
  }
}

MPI_JOB_ENDS

}  // namespace
