// Which layer's call an operator goes by. tests/run.sh runs it on several ranks.
#include <numeric>

#include "../mpi_job.hpp"
#include "agreement/layer_call.hpp"

using namespace distdl::agreement;

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
  std::int64_t generation = new_generation();

  explicit Layer(RankSet ranks) : id(std::make_shared<OperatorId>("Layer", std::move(ranks))) {}
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
  ~Layer() { leave(); }
  void call() { begin_layer_call(this, id, generation, id->rank_set.lock()); }
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
  CHECK(memory.enter(alone()) == nullptr);
}

TEST(the_innermost_call_that_covers_the_ranks) {
  Layer outer(everyone()), inner(alone());
  outer.call();
  inner.call();
  LayerMemory small, large;
  CHECK_EQ(small.enter(alone())->generation, inner.generation);
  CHECK_EQ(large.enter(everyone())->generation, mpi_job::size() == 1 ? inner.generation : outer.generation);
}

TEST(a_second_place_in_the_same_call_is_not_enclosed) {
  Layer outer(everyone()), inner(everyone());
  LayerMemory memory;
  outer.call();
  CHECK_EQ(memory.enter(everyone())->generation, outer.generation);
  CHECK(memory.enter(everyone()) == nullptr);
  inner.call();
  CHECK_EQ(memory.enter(everyone())->generation, inner.generation);
  inner.leave();
  CHECK(memory.enter(everyone()) == nullptr);  // the call of the outer layer is the same as at first
  outer.leave();
  outer.call();
  CHECK_EQ(memory.enter(everyone())->generation, outer.generation);
}

TEST(leaving_ends_what_began_within) {
  Layer outer(everyone()), inner(everyone());
  LayerMemory memory;
  outer.call();
  inner.call();
  outer.leave();
  CHECK(memory.enter(everyone()) == nullptr);
  outer.call();
  outer.call();
  outer.leave();
  CHECK(memory.enter(everyone()) != nullptr);
  inner.leave();  // which is in no call
  CHECK_EQ(memory.enter(alone()), nullptr);
}

TEST(a_generation_that_changes_during_a_call) {
  Layer layer(everyone());
  LayerMemory memory;
  layer.call();
  const auto later = new_generation();
  change_generation(&layer, later);
  CHECK_EQ(memory.enter(everyone())->generation, later);
}

MPI_JOB_ENDS

}  // namespace
