// How the watchdogs of the ranks ask each other what their processes do. The messages use communicators that are there
// already, and no rank waits for them: this has to work when everything else stands still.
#pragma once

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace distdl::comm {

/// The state of this process.
struct Status {
  std::string text;
  std::set<const Communicator*> awaiting;  // on which a thread waits for a certain rank
};
using DescribeStatus = std::function<Status()>;

/// Replies to the queries that have arrived. Only one thread of a process calls this.
void answer_status_queries(const DescribeStatus& describe);

struct StatusReplies {
  std::vector<int> ranks;           // those that were asked, and this one if it belongs to them, in MPI_COMM_WORLD
  std::vector<std::string> texts;   // empty if no reply came in time
  bool reported_elsewhere = false;  // the awaited rank waits for a further rank, or has just been asked by another
};

/// Asks the ranks of a communicator what they do, and meanwhile replies to their queries. Of a large communicator it
/// asks the rank that this one waits for, so that the ranks follow whom they wait for and one of them reports it; if
/// `awaited` is -1, the first ranks. Returns no replies if the communicator was freed.
StatusReplies query_status(const Communicator* communicator, int awaited, std::chrono::milliseconds patience,
                           const DescribeStatus& describe);

/// To be called before MPI is finalized: from then on this process neither asks nor replies.
void stop_status_queries();

}  // namespace distdl::comm
