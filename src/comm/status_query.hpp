// How the watchdogs of the ranks ask each other what their processes do. The messages use communicators that are there
// already, and no rank waits for them: this has to work when everything else stands still.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace distdl::comm {

using DescribeStatus = std::function<std::string()>;

/// Replies to the queries that have arrived. Only one thread of a process calls this.
void answer_status_queries(const DescribeStatus& describe);

struct StatusReplies {
  std::vector<int> ranks;          // in MPI_COMM_WORLD
  std::vector<std::string> texts;  // by rank of the communicator; empty if no reply came in time
};

/// Asks the ranks of a communicator what they do (of a large communicator, its first ranks), and meanwhile replies to
/// their queries. Returns no replies if the communicator was freed.
StatusReplies query_status(const Communicator* communicator, std::chrono::milliseconds patience,
                           const DescribeStatus& describe);

/// To be called before MPI is finalized: from then on this process neither asks nor replies.
void stop_status_queries();

}  // namespace distdl::comm
