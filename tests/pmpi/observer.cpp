// A library to preload before MPI's: it counts what a process makes and frees in MPI, and makes a chosen call fail.
//
// What is alive is counted for the whole process. Calls are counted, and fail, where distdl's extension makes them:
// DISTDL_FAIL=MPI_Ibcast_c,1,3,before makes the third MPI_Ibcast_c on rank 1 of the job do nothing and say that it
// failed; with "after" it does what it should, and says so all the same. DISTDL_CALLS=FILE writes at the end to FILE.0,
// FILE.1, ... what each rank called how often. Every function that the extension calls has to be here, which
// tests/python/process/leaks.py checks; so there are none that make windows. Votes of the ranks are
// counted by themselves, for tests/python/nn/votes.py.
#include <dlfcn.h>
#include <mpi.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>

#include "comm/error.hpp"  // for what MPI calls a count
#include "comm/vote.hpp"   // for the tag of votes

namespace {

using distdl::comm::Count, distdl::comm::Displacement;

std::mutex mutex;
auto& alive = *new std::map<std::string, long, std::less<>>;  // never destroyed: MPI may be in use after it
auto& calls = *new std::map<std::string, long, std::less<>>;
long votes = 0;

/// The call that is to fail.
struct Fault {
  std::string function, when;
  int rank = -1;
  long count = 0;

  Fault() {
    const char* const text = std::getenv("DISTDL_FAIL");
    std::istringstream in(text == nullptr ? "" : text);
    char comma = ',';
    std::getline(in, function, ',');
    in >> rank >> comma >> count >> comma >> when;
  }
};

int rank_in_job() {  // asked first while MPI is initialized, as distdl is not imported before
  static const int rank = [] {
    int number = -1;
    PMPI_Comm_rank(MPI_COMM_WORLD, &number);
    return number;
  }();
  return rank;
}

[[gnu::destructor]] void write_calls() {
  const char* const path = std::getenv("DISTDL_CALLS");
  if (path == nullptr || calls.empty()) return;
  std::ofstream file(path + ("." + std::to_string(rank_in_job())));
  for (const auto& [function, count] : calls) file << function << ' ' << count << '\n';
}

class Call {
 public:
  Call(const char* function, const void* caller) {
    Dl_info from{};
    if (dladdr(caller, &from) == 0 || std::string_view(from.dli_fname).find("distdl/_core.") == std::string::npos) {
      return;
    }
    from_extension_ = true;
    static const Fault fault;
    const std::scoped_lock lock(mutex);
    const bool chosen = ++calls[function] == fault.count && function == fault.function;
    if (rank_in_job() != fault.rank || !chosen) return;
    std::cerr << "observer: " << function << " fails on rank " << fault.rank << std::endl;
    fails_before_ = fault.when == "before";
    fails_after_ = fault.when == "after";
  }

  bool fails_before() const { return fails_before_; }
  int result(int code) const { return fails_after_ ? MPI_ERR_OTHER : code; }

  /// Of a vote each rank sends the first message to the next rank (src/comm/dissemination.cpp).
  void count_vote(int to, int tag, MPI_Comm comm) const {
    if (!from_extension_ || tag != distdl::comm::kVoteTag) return;
    int rank = 0, size = 0;
    PMPI_Comm_rank(comm, &rank);
    PMPI_Comm_size(comm, &size);
    const std::scoped_lock lock(mutex);
    if (to == (rank + 1) % size) ++votes;
  }

 private:
  bool from_extension_ = false, fails_before_ = false, fails_after_ = false;
};

/// Counts how many of these handles are null at the beginning of its scope and not at its end, or the other way round.
template <class Handle>
class Handles {
 public:
  Handles(const char* kind, Handle null, Count count, Handle* handles)
      : kind_(kind), null_(null), count_(count), handles_(handles), before_(not_null()) {}
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  ~Handles() {
    const std::scoped_lock lock(mutex);
    alive[kind_] += not_null() - before_;
  }

 private:
  long not_null() const {
    long found = 0;
    for (Count i = 0; i < count_; ++i) found += handles_[i] == null_ ? 0 : 1;
    return found;
  }

  const char* kind_;
  Handle null_;
  Count count_;
  Handle* handles_;
  long before_;
};

/// What a call may free or complete.
template <class Handle>
Handles<Handle> ended(const char* kind, Handle null, Handle* handles, Count count = 1) {
  return {kind, null, count, handles};
}

/// What a call makes or starts. Whatever the handle is before, it counts for nothing.
template <class Handle>
Handles<Handle> made(const char* kind, Handle null, Handle* handle) {
  *handle = null;
  return {kind, null, 1, handle};
}

long value_of(const std::map<std::string, long, std::less<>>& values, const char* name) {
  const std::scoped_lock lock(mutex);
  const auto found = values.find(name);
  return found == values.end() ? 0 : found->second;
}

}  // namespace

extern "C" {

/// For the tests, by ctypes.
long observer_alive(const char* kind) { return value_of(alive, kind); }
long observer_calls(const char* function) { return value_of(calls, function); }
long observer_votes() {
  const std::scoped_lock lock(mutex);
  return votes;
}

#define OBSERVE(function, parameters, arguments, counts) OBSERVE_(function, parameters, arguments, counts)
#define OBSERVE_(function, parameters, arguments, counts)    \
  int function parameters {                                  \
    const Call call(#function, __builtin_return_address(0)); \
    if (call.fails_before()) return MPI_ERR_OTHER;           \
    counts;                                                  \
    return call.result(P##function arguments);               \
  }
#define COUNTS(handles) [[maybe_unused]] const auto counted = handles

// What belongs to the process, and texts.
OBSERVE(MPI_Initialized, (int* flag), (flag), )
OBSERVE(MPI_Finalized, (int* flag), (flag), )
OBSERVE(MPI_Query_thread, (int* level), (level), )
OBSERVE(MPI_Is_thread_main, (int* flag), (flag), )
OBSERVE(MPI_Abort, (MPI_Comm comm, int code), (comm, code), )
OBSERVE(MPI_Get_library_version, (char* text, int* length), (text, length), )
OBSERVE(MPI_Get_processor_name, (char* name, int* length), (name, length), )
OBSERVE(MPI_Error_string, (int code, char* text, int* length), (code, text, length), )
OBSERVE(MPI_Error_class, (int code, int* error_class), (code, error_class), )

// Communicators.
OBSERVE(MPI_Comm_rank, (MPI_Comm comm, int* rank), (comm, rank), )
OBSERVE(MPI_Comm_size, (MPI_Comm comm, int* size), (comm, size), )
OBSERVE(MPI_Comm_set_errhandler, (MPI_Comm comm, MPI_Errhandler handler), (comm, handler), )
OBSERVE(MPI_Comm_create_keyval,
        (MPI_Comm_copy_attr_function * copy, MPI_Comm_delete_attr_function* free, int* key, void* state),
        (copy, free, key, state), )
OBSERVE(MPI_Comm_get_attr, (MPI_Comm comm, int key, void* value, int* found), (comm, key, value, found), )
OBSERVE(MPI_Comm_set_attr, (MPI_Comm comm, int key, void* value), (comm, key, value), )
OBSERVE(MPI_Comm_dup, (MPI_Comm comm, MPI_Comm* created), (comm, created),
        COUNTS(made("communicators", MPI_COMM_NULL, created)))
OBSERVE(MPI_Comm_split, (MPI_Comm comm, int color, int key, MPI_Comm* created), (comm, color, key, created),
        COUNTS(made("communicators", MPI_COMM_NULL, created)))
OBSERVE(MPI_Comm_create_group, (MPI_Comm comm, MPI_Group group, int tag, MPI_Comm* created),
        (comm, group, tag, created), COUNTS(made("communicators", MPI_COMM_NULL, created)))
OBSERVE(MPI_Cart_create,
        (MPI_Comm comm, int dims, const int extents[], const int periods[], int reorder, MPI_Comm* created),
        (comm, dims, extents, periods, reorder, created), COUNTS(made("communicators", MPI_COMM_NULL, created)))
OBSERVE(MPI_Comm_free, (MPI_Comm * comm), (comm), COUNTS(ended("communicators", MPI_COMM_NULL, comm)))

// Operations of our own, which are kept to the end of the process.
OBSERVE(DISTDL_MPI_LARGE(MPI_Op_create), (DISTDL_MPI_LARGE(MPI_User_function) * add, int commute, MPI_Op* created),
        (add, commute, created), )

// Groups and infos.
OBSERVE(MPI_Comm_group, (MPI_Comm comm, MPI_Group* group), (comm, group), COUNTS(made("groups", MPI_GROUP_NULL, group)))
OBSERVE(MPI_Group_incl, (MPI_Group group, int n, const int ranks[], MPI_Group* created), (group, n, ranks, created),
        COUNTS(made("groups", MPI_GROUP_NULL, created)))
OBSERVE(MPI_Group_translate_ranks, (MPI_Group a, int n, const int ranks[], MPI_Group b, int found[]),
        (a, n, ranks, b, found), )
OBSERVE(MPI_Group_free, (MPI_Group * group), (group), COUNTS(ended("groups", MPI_GROUP_NULL, group)))
OBSERVE(MPI_Comm_get_info, (MPI_Comm comm, MPI_Info* info), (comm, info), COUNTS(made("infos", MPI_INFO_NULL, info)))
OBSERVE(MPI_Info_free, (MPI_Info * info), (info), COUNTS(ended("infos", MPI_INFO_NULL, info)))
OBSERVE(MPI_Info_get, (MPI_Info info, const char* key, int length, char* value, int* found),
        (info, key, length, value, found), )
OBSERVE(MPI_Info_get_string, (MPI_Info info, const char* key, int* length, char* value, int* found),
        (info, key, length, value, found), )

// Types of messages that are longer than MPI counts, before MPI 4.
OBSERVE(MPI_Type_contiguous, (int count, MPI_Datatype part, MPI_Datatype* created), (count, part, created),
        COUNTS(made("types", MPI_DATATYPE_NULL, created)))
OBSERVE(MPI_Type_create_struct,
        (int count, const int counts[], const MPI_Aint places[], const MPI_Datatype parts[], MPI_Datatype* created),
        (count, counts, places, parts, created), COUNTS(made("types", MPI_DATATYPE_NULL, created)))
OBSERVE(MPI_Type_commit, (MPI_Datatype * type), (type), )
OBSERVE(MPI_Type_free, (MPI_Datatype * type), (type), COUNTS(ended("types", MPI_DATATYPE_NULL, type)))

// Operations that return when they are done.
OBSERVE(MPI_Allreduce, (const void* x, void* y, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm),
        (x, y, count, type, op, comm), )
OBSERVE(MPI_Bcast, (void* x, int count, MPI_Datatype type, int root, MPI_Comm comm), (x, count, type, root, comm), )
OBSERVE(MPI_Allgather,
        (const void* x, int count, MPI_Datatype type, void* y, int y_count, MPI_Datatype y_type, MPI_Comm comm),
        (x, count, type, y, y_count, y_type, comm), )
OBSERVE(MPI_Allgatherv,
        (const void* x, int count, MPI_Datatype type, void* y, const int counts[], const int offsets[],
         MPI_Datatype y_type, MPI_Comm comm),
        (x, count, type, y, counts, offsets, y_type, comm), )

// Questions between watchdogs, and votes: these are small.
OBSERVE(MPI_Iprobe, (int from, int tag, MPI_Comm comm, int* found, MPI_Status* status),
        (from, tag, comm, found, status), )
OBSERVE(MPI_Recv, (void* x, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status* status),
        (x, count, type, from, tag, comm, status), )
#if MPI_VERSION >= 4  // before, the others are these
OBSERVE(MPI_Isend, (const void* x, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request),
        (x, count, type, to, tag, comm, request), call.count_vote(to, tag, comm);
        COUNTS(made("requests", MPI_REQUEST_NULL, request)))
OBSERVE(MPI_Iallreduce,
        (const void* x, void* y, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request* request),
        (x, y, count, type, op, comm, request), COUNTS(made("requests", MPI_REQUEST_NULL, request)))
#endif

// Operations that are started, and what completes them.
OBSERVE(DISTDL_MPI_LARGE(MPI_Isend),
        (const void* x, Count count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request),
        (x, count, type, to, tag, comm, request), call.count_vote(to, tag, comm);
        COUNTS(made("requests", MPI_REQUEST_NULL, request)))
OBSERVE(DISTDL_MPI_LARGE(MPI_Irecv),
        (void* x, Count count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request),
        (x, count, type, from, tag, comm, request), COUNTS(made("requests", MPI_REQUEST_NULL, request)))
OBSERVE(DISTDL_MPI_LARGE(MPI_Ibcast),
        (void* x, Count count, MPI_Datatype type, int root, MPI_Comm comm, MPI_Request* request),
        (x, count, type, root, comm, request), COUNTS(made("requests", MPI_REQUEST_NULL, request)))
OBSERVE(DISTDL_MPI_LARGE(MPI_Ireduce),
        (const void* x, void* y, Count count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm,
         MPI_Request* request),
        (x, y, count, type, op, root, comm, request), COUNTS(made("requests", MPI_REQUEST_NULL, request)))
OBSERVE(DISTDL_MPI_LARGE(MPI_Iallreduce),
        (const void* x, void* y, Count count, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request* request),
        (x, y, count, type, op, comm, request), COUNTS(made("requests", MPI_REQUEST_NULL, request)))
OBSERVE(DISTDL_MPI_LARGE(MPI_Ireduce_scatter),
        (const void* x, void* y, const Count counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm,
         MPI_Request* request),
        (x, y, counts, type, op, comm, request), COUNTS(made("requests", MPI_REQUEST_NULL, request)))
OBSERVE(DISTDL_MPI_LARGE(MPI_Iallgatherv),
        (const void* x, Count count, MPI_Datatype type, void* y, const Count counts[], const Displacement offsets[],
         MPI_Datatype y_type, MPI_Comm comm, MPI_Request* request),
        (x, count, type, y, counts, offsets, y_type, comm, request),
        COUNTS(made("requests", MPI_REQUEST_NULL, request)))
// Of numbers of messages that are dropped.
OBSERVE(MPI_Ialltoall,
        (const void* x, int count, MPI_Datatype type, void* y, int y_count, MPI_Datatype y_type, MPI_Comm comm,
         MPI_Request* request),
        (x, count, type, y, y_count, y_type, comm, request), COUNTS(made("requests", MPI_REQUEST_NULL, request)))
// Of texts, whose lengths an int holds. Before MPI 4 the second is the call above.
OBSERVE(MPI_Iallgather,
        (const void* x, int count, MPI_Datatype type, void* y, int y_count, MPI_Datatype y_type, MPI_Comm comm,
         MPI_Request* request),
        (x, count, type, y, y_count, y_type, comm, request), COUNTS(made("requests", MPI_REQUEST_NULL, request)))
#if MPI_VERSION >= 4
OBSERVE(MPI_Iallgatherv,
        (const void* x, int count, MPI_Datatype type, void* y, const int counts[], const int offsets[],
         MPI_Datatype y_type, MPI_Comm comm, MPI_Request* request),
        (x, count, type, y, counts, offsets, y_type, comm, request),
        COUNTS(made("requests", MPI_REQUEST_NULL, request)))
#endif
OBSERVE(MPI_Wait, (MPI_Request * request, MPI_Status* status), (request, status),
        COUNTS(ended("requests", MPI_REQUEST_NULL, request)))
OBSERVE(MPI_Test, (MPI_Request * request, int* done, MPI_Status* status), (request, done, status),
        COUNTS(ended("requests", MPI_REQUEST_NULL, request)))
OBSERVE(MPI_Waitall, (int n, MPI_Request requests[], MPI_Status statuses[]), (n, requests, statuses),
        COUNTS(ended("requests", MPI_REQUEST_NULL, requests, n)))

}  // extern "C"
