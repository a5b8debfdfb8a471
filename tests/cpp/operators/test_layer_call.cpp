// Which layer's call an operator goes by. tests/run.sh runs it on several ranks.
#include <numeric>

#include "../mpi_job.hpp"
#include "operators/layer_call.hpp"

using namespace distdl::operators;

namespace {

RankSet everyone() {
  std::vector<int> ranks(static_cast<std::size_t>(mpi_job::size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return rank_set_of(MPI_COMM_WORLD, ranks);
}

RankSet alone() { return rank_set_of(MPI_COMM_WORLD, {mpi_job::rank()}); }

/// A layer on a set of ranks; the address stands for its agreement.
struct Layer {
  std::shared_ptr<const OperatorId> id;
  std::int64_t epoch = new_epoch();

  explicit Layer(RankSet ranks) : id(std::make_shared<OperatorId>("Layer", std::move(ranks))) {}
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
  ~Layer() { leave(); }
  void call() { begin_layer_call(this, id, epoch, id->rank_set.lock()); }
  void leave() { end_layer_call(this); }
};

TEST(a_set_covers_its_subsets_of_the_same_root) {
  CHECK(everyone().covers(alone()));
  CHECK_EQ(alone().covers(everyone()), mpi_job::size() == 1);
  MPI_Comm other = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &other);
  CHECK(!everyone().covers(rank_set_of(other, {mpi_job::rank()})));
  MPI_Comm_free(&other);
}

TEST(nothing_encloses_an_operator_outside_of_calls) {
  LayerMemory memory;
  memory.remember(new_epoch());
  CHECK(memory.enclosing(alone()) == nullptr);
  CHECK(memory.remembers(0));
}

TEST(the_innermost_call_that_covers_the_ranks) {
  Layer outer(everyone()), inner(alone());
  outer.call();
  inner.call();
  LayerMemory small, large;
  CHECK_EQ(small.enclosing(alone())->epoch, inner.epoch);
  CHECK_EQ(large.enclosing(everyone())->epoch, mpi_job::size() == 1 ? inner.epoch : outer.epoch);
}

TEST(an_epoch_is_remembered_from_call_to_call) {
  Layer layer(everyone());
  LayerMemory memory;
  for (int i = 0; i < 3; ++i) {
    layer.call();
    const auto* const call = memory.enclosing(everyone());
    CHECK(call != nullptr);
    CHECK_EQ(memory.remembers(call->epoch), i > 0);
    memory.remember(call->epoch);
    layer.leave();
  }
}

TEST(a_second_place_in_the_same_call_is_not_enclosed) {
  Layer outer(everyone()), inner(everyone());
  LayerMemory memory;
  outer.call();
  memory.remember(memory.enclosing(everyone())->epoch);
  CHECK(memory.enclosing(everyone()) == nullptr);
  CHECK(!memory.remembers(outer.epoch));
  inner.call();
  CHECK_EQ(memory.enclosing(everyone())->epoch, inner.epoch);
  inner.leave();
  CHECK(memory.enclosing(everyone()) == nullptr);  // the call of the outer layer is the same as at first
  outer.leave();
  outer.call();
  CHECK_EQ(memory.enclosing(everyone())->epoch, outer.epoch);
}

TEST(leaving_ends_what_began_within) {
  Layer outer(everyone()), inner(everyone());
  LayerMemory memory;
  outer.call();
  inner.call();
  outer.leave();
  CHECK(memory.enclosing(everyone()) == nullptr);
  outer.call();
  outer.call();
  outer.leave();
  CHECK(memory.enclosing(everyone()) != nullptr);
  inner.leave();  // which is in no call
  CHECK_EQ(memory.enclosing(alone()), nullptr);
}

TEST(an_epoch_that_changes_during_a_call) {
  Layer layer(everyone());
  LayerMemory memory;
  layer.call();
  const auto later = new_epoch();
  change_epoch(&layer, later);
  CHECK_EQ(memory.enclosing(everyone())->epoch, later);
}

MPI_JOB_ENDS

}  // namespace
