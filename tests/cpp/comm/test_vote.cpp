// What ranks learn from a vote. tests/run.sh runs it on several ranks.
#include <malloc.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "../mpi_job.hpp"
#include "base/hash.hpp"
#include "comm/buffered_send.hpp"
#include "comm/failure.hpp"
#include "comm/gather_texts.hpp"
#include "comm/last_call.hpp"
#include "comm/vote.hpp"
#include "comm/waiting.hpp"
#include "comm/watchdog.hpp"

using namespace distdl::comm;
using distdl::base::hash_of;
using mpi_job::everyone;
using mpi_job::rank;
using mpi_job::size;

namespace {

constexpr std::uint32_t kA = 1, kB = 2, kC = 4;  // flags

TEST(the_same_ballot_on_all_ranks) {
  const auto outcome = vote(*everyone(), {.call = 7, .value = hash_of("text")});
  CHECK(outcome.disagreement == Disagreement::none);
  CHECK_EQ(outcome.flags, 0);
}

TEST(the_flags_of_any_rank) {
  const bool last = rank() == size() - 1;
  const auto outcome = vote(*everyone(), {.call = 7, .flags = last ? kA | kB : kB});
  CHECK(outcome.any(kA) && outcome.any(kB) && !outcome.any(kC));
}

TEST(the_number_that_one_rank_broadcasts) {
  CHECK_EQ(vote(*everyone(), {.call = 7, .broadcast = rank() == size() - 1 ? 42 : 0}).broadcast, 42);
}

TEST(different_calls_and_values) {
  const auto differs = [](const Ballot& ballot) { return vote(*everyone(), ballot).disagreement; };
  const bool first = rank() == 0, alone = size() == 1;
  CHECK(differs({.call = first ? 7 : 10, .value = rank()}) == (alone ? Disagreement::none : Disagreement::call));
  CHECK(differs({.call = 7, .value = hash_of(first ? "a" : "b")}) ==
        (alone ? Disagreement::none : Disagreement::value));
}

TEST(exclusive_flags_are_of_one_kind_on_all_ranks) {
  const auto outcome = [](std::uint32_t flags) {
    return vote(*everyone(), {.call = 7, .value = rank(), .flags = flags, .exclusive = kA | kB});
  };
  const auto others = size() > 1 ? Disagreement::value : Disagreement::none;
  CHECK(outcome(kA | kC).disagreement == others);
  CHECK(outcome(kB | kC).disagreement == others);
  CHECK(outcome(rank() == 0 ? kA : kB).disagreement == (size() > 1 ? Disagreement::flags : Disagreement::none));
}

TEST(texts_by_rank) {
  const std::string mine(static_cast<std::size_t>(rank()), 'x');
  const auto texts = gather_texts(*everyone(), mine);
  CHECK_EQ(texts.size(), size());
  for (std::size_t r = 0; r < texts.size(); ++r) CHECK_EQ(texts[r].size(), r);
}

TEST(votes_are_counted_where_others_are_asked) {
  const auto before = votes(), before_here = everyone()->votes();
  vote(*everyone(), {.call = 7});
  CHECK_EQ(votes() - before, size() > 1 ? 1 : 0);
  CHECK_EQ(everyone()->votes() - before_here, size() > 1 ? 1 : 0);
  const auto alone = communicator(MPI_COMM_WORLD, std::vector<int>{rank()});
  vote(*alone, {.call = 7});
  CHECK_EQ(alone->votes(), 0);
  agree_on_freeing({everyone()});  // which frees nothing
  CHECK_EQ(everyone()->votes() - before_here, size() > 1 ? 2 : 0);
}

TEST(an_operation_is_described_until_the_next_one_of_its_thread) {
  const auto& activity = this_thread().activity;
  {
    const Operation outer({.name = "Broadcast", .number = 3, .pass = ", backward"});
    CHECK_EQ(activity.text(), std::string("Broadcast number 3, backward"));
    {
      const Operation inner("a part of it");
      CHECK_EQ(activity.text(), std::string("a part of it"));
    }
    CHECK_EQ(activity.text(), std::string("Broadcast number 3, backward"));
  }
  CHECK_EQ(activity.text(), std::string("Broadcast number 3, backward"));
}

TEST(a_communicator_is_freed_with_its_parent) {
  MPI_Comm parent = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &parent);
  const auto before = live_communicators();
  const auto made = communicator(parent);
  CHECK_EQ(live_communicators(), before + 1);
  MPI_Comm_free(&parent);
  CHECK_EQ(live_communicators(), before);
  CHECK_THROWS(made->handle(), "was freed");
}

TEST(only_some_ranks_debug) {
  MPI_Comm parent = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &parent);
  set_debugging(rank() == 0);
  if (size() > 1) CHECK_THROWS(communicator(parent), "DISTDL_DEBUG is set on some ranks");
  set_debugging(false);
  CHECK_EQ(communicator(parent)->size(), size());
  MPI_Comm_free(&parent);
}

TEST(tags_within_layers_rise_from_those_of_votes) {
  const auto of_vote = everyone()->next_tag(), within_layer = everyone()->next_tag_within_layers();
  CHECK(within_layer > of_vote);
  CHECK_EQ(everyone()->next_tag_within_layers(), within_layer + 1);
}

TEST(an_error_of_mpi_is_returned) {
  CHECK(MPI_Send(nullptr, 0, MPI_BYTE, size(), 0, everyone()->handle()) != MPI_SUCCESS);  // there is no such rank
}

TEST(a_message_is_kept_until_it_is_sent) {
  constexpr std::size_t kLarge = std::size_t{1} << 24;  // too large to be copied by MPI
  if (rank() == 0 && size() > 1) {
    send_buffered(std::string(kLarge, 'x').data(), kLarge, 1, 0, *everyone());
    finish_buffered_sends();
  } else if (rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::string received(kLarge, ' ');
    MPI_Recv(received.data(), static_cast<int>(kLarge), MPI_BYTE, 0, 0, everyone()->handle(), MPI_STATUS_IGNORE);
    CHECK(received == std::string(kLarge, 'x'));
  }
}

TEST(what_is_sent_takes_no_memory) {
  constexpr int kSize = 1 << 20, kTimes = 16;
  const auto in_use = [] {
    const auto heap = mallinfo2();
    return heap.uordblks + heap.hblkhd;
  };
  const std::string sent(kSize, 'x');
  std::string received(kSize, ' ');
  std::size_t before = 0;
  for (int time = 0; time < kTimes; ++time) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Irecv(received.data(), kSize, MPI_BYTE, rank(), 0, everyone()->handle(), &request);
    send_buffered(sent.data(), kSize, rank(), 0, *everyone());
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    if (time == 0) before = in_use();  // MPI keeps what it has made for the first
  }
  CHECK(in_use() < before + kTimes / 2 * kSize);
  finish_buffered_sends();
}

/// Sends this rank's number to all ranks, as messages of two operators.
SendEarly to_all_ranks() {
  return [](int first_tag, std::vector<int>& receivers) {
    const int number = rank();
    for (const int tag : {first_tag, second_tag(first_tag)}) {
      for (int other = 0; other < size(); ++other) {
        send_buffered(&number, sizeof(number), other, tag, *everyone());
        receivers.push_back(other);
      }
    }
  };
}

/// Whether anything is under way to this rank, from any other. No rank goes on, to its next vote, before all have
/// looked.
bool anything_there(const Communicator& communicator = *everyone()) {
  MPI_Barrier(communicator.handle());
  int there = 0;
  for (int polls = 0; there == 0 && polls < 10; ++polls) {  // the first may do no more than fetch what has arrived
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator.handle(), &there, MPI_STATUS_IGNORE);
  }
  MPI_Barrier(communicator.handle());
  return there != 0;
}

TEST(what_all_ranks_sent_early_is_received) {
  const auto outcome = vote(*everyone(), {.call = 7, .send_early = to_all_ranks()});
  CHECK(outcome.all_can_send_early && !outcome.dropped);
  CHECK_EQ(outcome.early_tag.has_value(), size() > 1);
  for (int other = 0; outcome.early_tag && other < size(); ++other) {
    for (const int tag : {second_tag(*outcome.early_tag), *outcome.early_tag}) {
      int number = -1;
      MPI_Recv(&number, 1, MPI_INT, other, tag, everyone()->handle(), MPI_STATUS_IGNORE);
      CHECK_EQ(number, other);
    }
  }
  CHECK(!anything_there());
}

TEST(what_some_ranks_sent_early_is_dropped) {
  const bool first = rank() == 0;
  const auto fails = [](int tag, std::vector<int>& receivers) {
    send_buffered(&tag, sizeof(tag), 0, tag, *everyone());
    receivers.push_back(0);
    throw std::runtime_error("no memory");
  };
  const std::vector<Ballot> ballots{
      {.call = 7, .send_early = first ? SendEarly() : to_all_ranks()},
      {.call = 7, .send_early = first ? SendEarly(fails) : to_all_ranks()},
      {.call = first ? 7 : 10, .send_early = to_all_ranks()},
      {.call = 7, .value = rank(), .send_early = to_all_ranks()},
      {.call = 7, .flags = first ? kA : kB, .exclusive = kA | kB, .send_early = to_all_ranks()},
  };
  for (const auto& ballot : ballots) {
    const auto outcome = vote(*everyone(), ballot);
    CHECK_EQ(outcome.dropped, size() > 1);
    CHECK(!outcome.early_tag);
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
        send_buffered(&tag, sizeof(tag), to, tag, *others);
        receivers.push_back(to);
      }
    };
    const auto outcome = vote(*others, {.call = 7, .send_early = send});
    CHECK(outcome.disagreement == Disagreement::call && outcome.dropped && !outcome.early_tag);
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
  set_hosts(rank() == 0 ? kSeveralHosts : kHostsByName);
  CHECK_EQ(communicator(MPI_COMM_WORLD, all_but_last)->spans_hosts(), size() > 2);
  set_hosts(kHostsByName);
  CHECK(!everyone()->spans_hosts());
}

TEST(messages_that_can_be_sent_early_may_wait) {
  const auto outcome = vote(*everyone(), {.call = 7, .send_early = to_all_ranks(), .early = false});
  CHECK(outcome.all_can_send_early && !outcome.dropped && !outcome.early_tag);
  CHECK(!anything_there());
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
    const auto outcome = vote(*everyone(), {.call = 7, .send_early = to_all_ranks()});
    CHECK(outcome.disagreement == (size() > 1 ? Disagreement::step : Disagreement::none));
    CHECK_EQ(outcome.dropped, size() > 1);
    CHECK(!anything_there());
  }
}

MPI_JOB_ENDS

}  // namespace
