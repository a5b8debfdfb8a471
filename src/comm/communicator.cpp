#include "comm/communicator.hpp"

#include <array>
#include <atomic>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include "base/hash.hpp"
#include "comm/error.hpp"
#include "comm/failure.hpp"
#include "comm/last_call.hpp"
#include "comm/progress.hpp"
#include "comm/vote.hpp"
#include "comm/waiting.hpp"
#include "comm/watchdog.hpp"

namespace distdl::comm {

namespace {

// MPI_Comm_create_group asks for a tag to keep apart creations that run at the same time in several threads.
constexpr int kCreationTag = 4242;

constexpr int kFirstTag = 8192;        // operators and votes use smaller tags
constexpr int kGuaranteedTag = 32767;  // every MPI library has tags up to this

std::atomic<std::int64_t> live{0}, all_votes{0};
std::atomic<int> ranks_on_each_host{kHostsByName};

/// The largest of what the ranks pass. Collective.
template <std::size_t n>
std::array<std::int64_t, n> largest_of(std::array<std::int64_t, n> numbers, MPI_Comm handle) {
  check(MPI_Allreduce(MPI_IN_PLACE, numbers.data(), static_cast<int>(n), MPI_INT64_T, MPI_MAX, handle),
        "MPI_Allreduce");
  return numbers;
}

/// Facts that the ranks of a new communicator have to know of each other.
struct Surroundings {
  std::int64_t host = 0;  // of this rank
  bool spans_hosts = false;
  bool same_debugging = true;
};

/// Collective.
Surroundings surroundings_of(MPI_Comm handle) {
  std::array<char, MPI_MAX_PROCESSOR_NAME + 1> name{};
  int length = 0, world_rank = 0;
  check(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name");
  check(MPI_Comm_rank(MPI_COMM_WORLD, &world_rank), "MPI_Comm_rank");
  const std::int64_t by_name = base::hash_of(name.data()), mode = debugging() ? 1 : 0, said = ranks_on_each_host;
  constexpr auto kNothing = std::numeric_limits<std::int64_t>::max();
  const auto [minus_fewest, mode_max, mode_min, last_name, first_name, last_rank, first_rank] = largest_of<7>(
      {-(said == kHostsByName ? kNothing : said), mode, -mode, by_name, -by_name, world_rank, -world_rank}, handle);
  const std::int64_t fewest = -minus_fewest;
  const bool named = fewest == kNothing;
  return {.host = named ? by_name : world_rank / fewest,
          .spans_hosts = named ? last_name != -first_name : last_rank / fewest != -first_rank / fewest,
          .same_debugging = mode_max == -mode_min};
}

/// The hosts of all ranks. Collective.
std::vector<std::int64_t> gathered_hosts(std::int64_t own, int ranks, MPI_Comm handle) {
  std::vector<std::int64_t> hosts(static_cast<std::size_t>(ranks));
  check(MPI_Allgather(&own, 1, MPI_INT64_T, hosts.data(), 1, MPI_INT64_T, handle), "MPI_Allgather");
  return hosts;
}

/// Throws where MPI would end the process: a communicator is used after its end, or after MPI's own.
void refuse_freed(MPI_Comm handle) {
  if (handle != MPI_COMM_NULL && !mpi_ended()) return;
  throw std::runtime_error(
      "the communicator of this operator was freed (or MPI was finalized); "
      "keep a partition's communicator alive for as long as its layers are used");
}

/// The number of tags for votes. There are as many for messages within layers, and for a second operator beside a vote.
int tags() {
  static const int count = [] {
    int* largest = nullptr;
    int known = 0;
    check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&largest), &known), "MPI_Comm_get_attr");
    return ((known != 0 ? *largest : kGuaranteedTag) - kFirstTag) / 3;
  }();
  return count;
}

struct Register {
  std::mutex mutex;
  std::vector<const Communicator*> in_order;
};

/// Never destroyed: MPI is finalized after everything else.
Register& all_communicators() {
  static auto* const all = new Register;
  return *all;
}

struct Cache {
  std::mutex mutex;  // held while the ranks create a communicator: threads with other parents go on
  std::map<std::vector<int>, CommunicatorPtr> by_ranks;
  std::vector<CommunicatorPtr> in_order;  // of creation: the order in which all ranks free them
};

int free_cache(MPI_Comm, int, void* attribute, void*) {
  const std::unique_ptr<Cache> cache(static_cast<Cache*>(attribute));
  agree_on_freeing({cache->in_order.begin(), cache->in_order.end()});
  for (const auto& communicator : cache->in_order) communicator->free();
  return MPI_SUCCESS;
}

int keyval() {
  static const int key = [] {
    int created = MPI_KEYVAL_INVALID;
    // A duplicate of the user's communicator starts with an empty cache.
    check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &free_cache, &created, nullptr), "MPI_Comm_create_keyval");
    return created;
  }();
  return key;
}

Cache& cache_of(MPI_Comm parent) {
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  void* attribute = nullptr;
  int cached = 0;
  check(MPI_Comm_get_attr(parent, keyval(), static_cast<void*>(&attribute), &cached), "MPI_Comm_get_attr");
  if (cached == 0) {
    auto cache = std::make_unique<Cache>();
    check(MPI_Comm_set_attr(parent, keyval(), cache.get()), "MPI_Comm_set_attr");
    attribute = cache.release();
  }
  return *static_cast<Cache*>(attribute);
}

/// The name of the operation in reports.
std::string making_of(std::ptrdiff_t ranks) { return "making a communicator of " + std::to_string(ranks) + " ranks"; }

MPI_Comm create(MPI_Comm parent, std::span<const int> ranks) {
  const Operation operation(making_of(std::ssize(ranks)));
  const Waiting waiting;
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  check(MPI_Comm_group(parent, &all), "MPI_Comm_group");
  int code = MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some);
  MPI_Group_free(&all);
  check(code, "MPI_Group_incl");
  MPI_Comm created = MPI_COMM_NULL;
  code = MPI_Comm_create_group(parent, some, kCreationTag, &created);
  MPI_Group_free(&some);
  check(code, "MPI_Comm_create_group");
  return created;
}

}  // namespace

Communicator::Communicator(MPI_Comm handle) : handle_(handle) {
  check(MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(handle_, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(handle_, &size_), "MPI_Comm_size");
  if (size_ > 1) {
    const Operation operation(making_of(size_));
    const Waiting waiting;
    const auto [host, spans_hosts, same_debugging] = surroundings_of(handle_);
    if (!same_debugging) {  // then the ranks would wait for each other in different votes
      check(MPI_Comm_free(&handle_), "MPI_Comm_free");
      throw std::runtime_error(
          "DISTDL_DEBUG is set on some ranks and not on others; set it on all ranks or on none (mpiexec of Open MPI "
          "passes it on with -x DISTDL_DEBUG)");
    }
    host_ = host;
    spans_hosts_ = spans_hosts;
    const std::vector<std::int64_t> one_host(static_cast<std::size_t>(size_));
    vote_rounds_ = comm::vote_rounds(rank_, spans_hosts ? gathered_hosts(host, size_, handle_) : one_host);
  }
  ++live;
  const std::lock_guard lock(all_communicators().mutex);
  all_communicators().in_order.push_back(this);
}

MPI_Comm Communicator::handle() const {
  refuse_after_failure();
  refuse_freed(handle_);
  return handle_;
}

Lock Communicator::lock() {
  int is_main = 1;
  if (!thread_multiple()) check(MPI_Is_thread_main(&is_main), "MPI_Is_thread_main");
  if (is_main == 0) {
    throw std::runtime_error(
        "distdl was called from a thread that is not the main one, but MPI was initialized with less than "
        "MPI_THREAD_MULTIPLE");
  }
  return Lock(in_use_);
}

void set_hosts(int ranks_on_each) { ranks_on_each_host = ranks_on_each; }

void Communicator::count_vote() const {
  ++votes_;
  ++all_votes;
}

int Communicator::next_tag() const { return kFirstTag + static_cast<int>(tags_++ % tags()); }

int Communicator::next_tag_within_layers() const {
  return kFirstTag + tags() + static_cast<int>(tags_within_layers_++ % tags());
}

int second_tag(int tag) { return tag + 2 * tags(); }

MPI_Comm Communicator::view(const std::vector<int>& shape) {
  const auto known = views_.find(shape);
  if (known != views_.end()) return known->second;
  const auto making = making_of(size_);
  const Operation operation({.name = making, .communicator = this});
  const Waiting waiting;
  MPI_Comm made = MPI_COMM_NULL;
  if (shape.empty() || shape.front() == kApart) {
    check(MPI_Comm_dup(handle(), &made), "MPI_Comm_dup");
  } else {
    const std::vector<int> periods(shape.size(), 0);
    check(MPI_Cart_create(handle(), static_cast<int>(shape.size()), shape.data(), periods.data(), 0, &made),
          "MPI_Cart_create");
  }
  ++live;
  return views_[shape] = made;
}

void Communicator::free() noexcept {
  {
    const std::lock_guard lock(all_communicators().mutex);
    std::erase(all_communicators().in_order, this);
  }
  const bool alive = !mpi_ended();
  for (auto& [shape, view] : views_) {
    if (alive) MPI_Comm_free(&view);
    --live;
  }
  views_.clear();
  if (alive) MPI_Comm_free(&handle_);
  handle_ = MPI_COMM_NULL;
  --live;
}

CommunicatorPtr communicator(MPI_Comm parent, std::span<const int> ranks) {
  refuse_after_failure();
  refuse_freed(parent);
  auto& cache = cache_of(parent);
  const std::scoped_lock lock(cache.mutex);
  auto& entry = cache.by_ranks[{ranks.begin(), ranks.end()}];
  if (!entry) {
    if (ranks.size() > 1) begin_to_watch();
    entry = std::make_shared<Communicator>(create(parent, ranks));
    cache.in_order.push_back(entry);
  }
  return entry;
}

CommunicatorPtr communicator(MPI_Comm parent) {
  refuse_freed(parent);
  int size = 0;
  check(MPI_Comm_size(parent, &size), "MPI_Comm_size");
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return communicator(parent, ranks);
}

void with_communicators(const std::function<void(const std::vector<const Communicator*>&)>& use) {
  const std::lock_guard lock(all_communicators().mutex);
  use(all_communicators().in_order);
}

bool mpi_ended() {
  int finalized = 0;
  static_cast<void>(MPI_Finalized(&finalized));  // a call that fails does not say that MPI has ended
  return finalized != 0;
}

std::int64_t votes() { return all_votes; }
std::int64_t live_communicators() { return live; }

}  // namespace distdl::comm
