// What only many ranks, and many messages, show. tests/run.sh runs it on 66 ranks.
#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "../mpi_job.hpp"
#include "comm/buffered_send.hpp"
#include "comm/failure.hpp"
#include "comm/status_query.hpp"
#include "comm/vote.hpp"
#include "comm/waiting.hpp"

using namespace distdl::comm;
using mpi_job::everyone;
using mpi_job::rank;
using mpi_job::size;
using std::chrono::milliseconds;

namespace {

/// In three rounds of eight ranks.
TEST(votes_are_those_of_ranks_on_several_hosts) {
  set_hosts(kSeveralHosts);
  CHECK(everyone()->spans_hosts());
}

/// The rank at so many places behind this one, or before it.
int rank_behind(int places) { return ((rank() + places) % size() + size()) % size(); }

const std::array kPlaces{1, 9, 64};

/// Sends this rank's number to a few ranks.
SendEarly to_some(const Communicator& communicator) {
  return [&communicator](int tag, std::vector<int>& receivers) {
    const int number = rank();
    for (const auto places : kPlaces) {
      send_buffered(&number, sizeof(number), rank_behind(places), tag, communicator);
      receivers.push_back(rank_behind(places));
    }
  };
}

TEST(what_all_ranks_sent_early_is_received_after_three_rounds) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    const std::int64_t from_one = rank() == (attempt * 29) % size() ? 42 + attempt : 0;
    const auto outcome = vote(*everyone(), {.call = 7, .broadcast = from_one, .send_early = to_some(*everyone())});
    CHECK(outcome.disagreement == Disagreement::none && outcome.all_can_send_early && !outcome.dropped);
    CHECK_EQ(outcome.broadcast, 42 + attempt);
    CHECK(outcome.early_tag.has_value());
    for (const auto places : kPlaces) {
      int number = -1;
      MPI_Recv(&number, 1, MPI_INT, rank_behind(-places), outcome.early_tag.value(), everyone()->handle(),
               MPI_STATUS_IGNORE);
      CHECK_EQ(number, rank_behind(-places));
    }
  }
}

/// Votes in which one rank differs from all others.
void hear_each_rank(const Communicator& communicator) {
  const int last = size() - 1;
  for (const auto different : {0, 1, 7, 8, 9, 63, 64, last}) {
    if (different >= size()) continue;
    const bool differs = rank() == different;
    const auto outcome = vote(communicator, {.call = 7, .value = differs, .send_early = to_some(communicator)});
    CHECK(outcome.disagreement == Disagreement::value && outcome.dropped && !outcome.early_tag);
    const auto without = vote(communicator, {.call = 7, .send_early = differs ? SendEarly() : to_some(communicator)});
    CHECK(without.disagreement == Disagreement::none && without.dropped && !without.all_can_send_early);
  }
}

TEST(each_rank_is_heard_by_all) { hear_each_rank(*everyone()); }

TEST(ranks_of_a_host_are_heard_through_its_first) {
  MPI_Comm parent = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &parent);
  set_hosts(10);
  const auto communicator = distdl::comm::communicator(parent);
  CHECK_EQ(communicator->host(), rank() / 10);
  std::size_t sent = 0;
  for (const auto& round : communicator->vote_rounds()) sent += round.to.size();
  const auto on_host = std::min(10, size() - rank() / 10 * 10);
  if (size() == 66 && rank() % 10 == 0) CHECK_EQ(sent, 6 + std::min(8, on_host - 1));
  if (size() == 66 && rank() % 10 == 9) CHECK_EQ(sent, 1);
  hear_each_rank(*communicator);
  set_hosts(kSeveralHosts);
  MPI_Comm_free(&parent);
}

/// The ranks that are asked reply so many times.
void reply(int times) {
  int replies = 0;
  while (replies < times) {
    answer_status_queries([&] { return Status{"reply " + std::to_string(++replies), {}}; });
    std::this_thread::sleep_for(milliseconds(5));
  }
}

/// Rank 0 is late, ranks 1 and 2 wait for it, rank 3 waits for rank 2. Each asks whom it waits for; rank 1 asks first.
TEST(of_many_ranks_that_wait_the_first_that_waits_for_the_late_rank_reports_it) {
  constexpr std::array kAwaited{-1, 0, 0, 2};
  for (const int asking : {1, 2, 3}) {
    const auto& communicator = *everyone();
    const int awaited = kAwaited.at(static_cast<std::size_t>(asking));
    const auto describe = [&] { return rank() == 0 ? Status{"is late", {}} : Status{"waits", {&communicator}}; };
    if (rank() == asking) {
      const auto replies = query_status(&communicator, awaited, milliseconds(30'000), describe);
      CHECK_EQ(replies.ranks, (std::vector{asking, awaited}));
      CHECK_EQ(replies.texts.front(), std::string("waits"));
      CHECK_EQ(replies.texts.back(), std::string(awaited == 0 ? "is late" : "waits"));
      CHECK_EQ(replies.reported_elsewhere, asking != 1);
    } else if (rank() == awaited) {
      bool replied = false;
      while (!replied) answer_status_queries([&] { return replied = true, describe(); });
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

TEST(of_many_ranks_the_first_64_are_asked) {
  constexpr int kAsked = 64, kUnknown = -1;
  for (const int asking : {size() - 1, 0}) {
    const auto describe = [] { return Status{"asks", {}}; };
    // A query without patience, to which the replies come during the next query.
    if (rank() == asking) query_status(everyone().get(), kUnknown, milliseconds(0), describe);
    const bool is_asked = rank() < kAsked && rank() != asking;
    if (is_asked) reply(1);
    MPI_Barrier(MPI_COMM_WORLD);
    if (is_asked) reply(1);
    if (rank() != asking) continue;
    const auto replies = query_status(everyone().get(), kUnknown, milliseconds(30'000), describe);
    CHECK_EQ(replies.ranks.size(), std::min(kAsked, size()));
    CHECK(!replies.reported_elsewhere);
    for (std::size_t r = 0; r < replies.texts.size(); ++r) {
      CHECK_EQ(replies.ranks[r], r);
      CHECK_EQ(replies.texts[r], std::string(std::cmp_equal(r, asking) ? "asks" : "reply 1"));
    }
  }
}

TEST(a_rank_that_waits_in_a_vote_says_for_which_rank) {
  constexpr int kLate = 5;
  const auto communicator = everyone();
  const Operation operation({.name = "vote", .communicator = communicator.get()});
  std::atomic<bool> voted = false;
  int seen = -1;
  auto& voter = this_thread();
  std::thread watching([&] {
    while (rank() == kLate + 1 && !voted) {
      if (const int awaited = voter.awaited; awaited >= 0 && seen < 0) seen = awaited;
    }
  });
  if (rank() == kLate) std::this_thread::sleep_for(milliseconds(300));
  vote(*communicator, {.call = 7});
  voted = true;
  watching.join();
  if (rank() == kLate + 1) CHECK_EQ(seen, kLate);
  CHECK_EQ(voter.awaited, -1);
}

TEST(of_more_than_1024_messages_the_sender_waits_for_the_oldest) {
  constexpr int kMessages = 1100, kTag = 5;
  constexpr milliseconds kLate{200};
  std::vector<int> message(kMaxBuffered / sizeof(int));
  const auto before = waited;
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank() == 0) {
    for (int number = 0; number < kMessages; ++number) {
      message.front() = message.back() = number;
      send_buffered(message.data(), kMaxBuffered, 1, kTag, *everyone());
      if (number == 1000) CHECK(waited - before < kLate / 2);
    }
    CHECK(waited - before >= kLate / 2);
  } else if (rank() == 1) {
    std::this_thread::sleep_for(kLate);
    for (int number = 0; number < kMessages; ++number) {
      MPI_Recv(message.data(), static_cast<int>(kMaxBuffered), MPI_BYTE, 0, kTag, everyone()->handle(),
               MPI_STATUS_IGNORE);
      CHECK_EQ(message.front(), number);
      CHECK_EQ(message.back(), number);
    }
  }
}

MPI_JOB_ENDS

}  // namespace
