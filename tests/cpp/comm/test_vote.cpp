// What ranks learn from a vote. tests/run.sh runs it on several ranks.
#include "../mpi_job.hpp"
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

TEST(no_vote_after_one_was_given_up) {
  const std::vector<int> me{rank()};
  const auto alone = communicator(MPI_COMM_WORLD, me);
  alone->abandon();
  CHECK_THROWS(vote(*alone, {.call = 7}), "was given up");
}

MPI_JOB_ENDS

}  // namespace
