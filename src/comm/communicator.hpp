// Private communicators, cached on the communicator that they were made from.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "comm/vote_rounds.hpp"

namespace distdl::comm {

/// The lock that a thread holds while it uses a communicator. The thread may take it again.
using Lock = std::unique_lock<std::recursive_mutex>;

/// A private communicator, owned by the cache of its parent and never by an operator: MPI_Comm_free is collective and
/// garbage collection is not. It is freed together with its parent; using it afterwards throws.
class Communicator {
 public:
  explicit Communicator(MPI_Comm handle);  // collective
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  MPI_Comm handle() const;  // throws std::runtime_error once the parent was freed
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Whether messages between its ranks may travel between hosts; the same on all of them.
  bool spans_hosts() const { return spans_hosts_; }
  /// The host of this rank, by a number that it alone has among the hosts of the ranks.
  std::int64_t host() const { return host_; }
  /// The messages of this rank in a vote.
  const std::vector<VoteRound>& vote_rounds() const { return vote_rounds_; }

  /// Numbers the operators made on this communicator. All ranks make them in the same order, so the number names the
  /// same operator everywhere.
  std::int64_t next_operator() { return ++operators_; }

  /// Counts the votes of its ranks.
  void count_vote() const;
  std::int64_t votes() const { return votes_; }

  /// The tag of messages that belong to the next vote of its ranks, the same on all of them. Each vote takes a new tag.
  int next_tag() const;
  /// The tag of messages of the next call of an operator within a layer, where no vote is held. No vote has it.
  int next_tag_within_layers() const;

  /// Records that a vote on it was given up: its ranks are out of step for ever.
  void abandon() const { abandoned_ = true; }
  bool abandoned() const { return abandoned_; }

  /// Whether its last vote agreed that the next calls take none.
  bool unchecked() const { return unchecked_; }
  void set_unchecked(bool on) const { unchecked_ = on; }

  /// The same ranks as a communicator that may be handed to users: Cartesian if a shape is given. Made at the first
  /// call; collective then. Freed with this communicator.
  MPI_Comm view(const std::vector<int>& shape);
  /// The same ranks as a communicator that is never handed to users, for calls that have no order with theirs. Made and
  /// freed as views are.
  MPI_Comm apart() { return view({kApart}); }

  /// For as long as the caller keeps it, other threads of this process wait with what they do on this communicator.
  /// Throws std::runtime_error on all but the main thread unless MPI was initialized with MPI_THREAD_MULTIPLE.
  [[nodiscard]] Lock lock();

  void free() noexcept;  // collective; called by the parent's delete callback only

 private:
  static constexpr int kApart = 0;  // as the shape of a view, which no Cartesian communicator has

  MPI_Comm handle_;
  int rank_ = 0;
  int size_ = 0;
  bool spans_hosts_ = false;
  std::int64_t host_ = 0;
  std::vector<VoteRound> vote_rounds_;
  std::int64_t operators_ = 0;
  mutable std::int64_t votes_ = 0;
  mutable std::int64_t tags_ = 0, tags_within_layers_ = 0;
  mutable bool abandoned_ = false;
  mutable bool unchecked_ = false;
  std::map<std::vector<int>, MPI_Comm> views_;
  std::recursive_mutex in_use_;
};

/// Where ranks are: on hosts as MPI names the processors, or so many ranks of MPI_COMM_WORLD on each host.
enum Hosts : int { kHostsByName = 0, kSeveralHosts = 1, kOneHost = std::numeric_limits<int>::max() };

/// For communicators that are made from now on. If the ranks say different things, the most hosts count, and names
/// where no rank says a number.
void set_hosts(int ranks_on_each);

/// The tag of early messages of a second operator, by the tag of the vote that they travel beside.
int second_tag(int tag);

using CommunicatorPtr = std::shared_ptr<Communicator>;

/// The private communicator of `ranks` (ranks of `parent`, in this order), made at the first call and cached on
/// `parent`. Collective over these ranks, among which the caller must be.
CommunicatorPtr communicator(MPI_Comm parent, std::span<const int> ranks);

/// The private communicator of all of the parent's ranks.
CommunicatorPtr communicator(MPI_Comm parent);

/// Calls the function with all communicators that were not freed, in the order of creation. None is freed meanwhile.
void with_communicators(const std::function<void(const std::vector<const Communicator*>&)>& use);

/// Whether MPI was finalized: any call of MPI that communicates would end the process.
bool mpi_ended();

/// How many votes this process took part in with other ranks, on any communicator.
std::int64_t votes();

/// How many private communicators this process holds.
std::int64_t live_communicators();

}  // namespace distdl::comm
