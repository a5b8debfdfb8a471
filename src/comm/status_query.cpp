#include "comm/status_query.hpp"

#include <algorithm>
#include <array>
#include <list>
#include <numeric>
#include <optional>
#include <thread>

#include "base/text.hpp"
#include "comm/error.hpp"

namespace distdl::comm {

namespace {

constexpr int kQuery = 4243, kReply = 4244;  // tags that no operator uses
constexpr std::size_t kMaxQueried = 64;
constexpr std::size_t kTextSize = 1000;
constexpr std::chrono::milliseconds kBetweenPolls{10};

struct Message {
  std::int64_t query = 0;  // the number of the query, or of the query that this replies to
  std::array<char, kTextSize> text{};
};

struct SentMessage {
  Message message;
  MPI_Request request = MPI_REQUEST_NULL;
};

struct ReceivedQuery {
  const Communicator* communicator;
  int rank;
  std::int64_t query;
};

bool stopped = false;         // read and written within with_communicators only, whose lock guards it
std::int64_t last_query = 0;  // used by the watchdog's thread only, like sent_messages()

/// Messages that MPI may still read. Never destroyed: the watchdog's thread outlives the end of main.
std::list<SentMessage>& sent_messages() {
  static auto* const messages = new std::list<SentMessage>;
  return *messages;
}

void post(const Communicator& communicator, int rank, int tag, const Message& message) {
  auto& sent = sent_messages().emplace_back(SentMessage{message});
  check(MPI_Isend(&sent.message, sizeof(Message), MPI_BYTE, rank, tag, communicator.handle(), &sent.request),
        "MPI_Isend");
}

/// Receives the next message with this tag. Returns the rank that it came from, or nothing if none has arrived.
std::optional<int> take(const Communicator& communicator, int tag, Message& message) {
  int arrived = 0;
  MPI_Status status;
  check(MPI_Iprobe(MPI_ANY_SOURCE, tag, communicator.handle(), &arrived, &status), "MPI_Iprobe");
  if (arrived == 0) return std::nullopt;
  check(MPI_Recv(&message, sizeof(Message), MPI_BYTE, status.MPI_SOURCE, tag, communicator.handle(), &status),
        "MPI_Recv");
  return status.MPI_SOURCE;
}

/// Calls the function with the communicators that may be used now; it must not wait.
void with_usable(const std::function<void(const std::vector<const Communicator*>&)>& use) {
  with_communicators([&](const auto& communicators) {
    if (!stopped) use(communicators);
  });
}

/// Calls the function if the communicator may be used now. Returns whether it did.
bool with_usable(const Communicator* communicator, const std::function<void()>& use) {
  bool used = false;
  with_usable([&](const auto& all) {
    used = std::find(all.begin(), all.end(), communicator) != all.end();
    if (used) use();
  });
  return used;
}

std::vector<ReceivedQuery> received_queries() {
  std::vector<ReceivedQuery> result;
  Message message;
  with_usable([&](const auto& communicators) {
    std::erase_if(sent_messages(), [](SentMessage& sent) {
      int done = 0;
      check(MPI_Test(&sent.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      return done != 0;
    });
    for (const auto* communicator : communicators) {
      while (const auto rank = take(*communicator, kQuery, message)) {
        result.push_back({communicator, *rank, message.query});
      }
    }
  });
  return result;
}

/// The numbers of the communicator's first ranks in MPI_COMM_WORLD.
std::vector<int> world_ranks(const Communicator& communicator, std::size_t count) {
  std::vector<int> ranks(count), result(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  MPI_Group group = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  check(MPI_Comm_group(communicator.handle(), &group), "MPI_Comm_group");
  check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check(MPI_Group_translate_ranks(group, static_cast<int>(count), ranks.data(), world, result.data()),
        "MPI_Group_translate_ranks");
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return result;
}

}  // namespace

void answer_status_queries(const DescribeStatus& describe) {
  const auto open = received_queries();
  if (open.empty()) return;
  Message message;
  const auto text = describe();  // with no lock held: it may take its time
  base::cut_to(text, message.text.size() - 1).copy(message.text.data(), message.text.size() - 1);
  for (const auto& [communicator, rank, query] : open) {
    message.query = query;
    with_usable(communicator, [&] { post(*communicator, rank, kReply, message); });
  }
}

StatusReplies query_status(const Communicator* communicator, std::chrono::milliseconds patience,
                           const DescribeStatus& describe) {
  StatusReplies replies;
  std::size_t missing = 0, own_rank = 0;
  Message message{++last_query, {}};
  const bool posted = with_usable(communicator, [&] {
    own_rank = static_cast<std::size_t>(communicator->rank());
    const auto ranks = std::min(static_cast<std::size_t>(communicator->size()), kMaxQueried);
    replies = {world_ranks(*communicator, ranks), std::vector<std::string>(ranks)};
    for (int rank = 0; rank < static_cast<int>(ranks); ++rank) {
      if (rank == communicator->rank()) continue;
      post(*communicator, rank, kQuery, message);
      ++missing;
    }
  });
  if (!posted) return replies;
  if (own_rank < replies.texts.size()) replies.texts[own_rank] = describe();
  const auto until = std::chrono::steady_clock::now() + patience;
  while (missing > 0 && std::chrono::steady_clock::now() < until) {
    answer_status_queries(describe);
    with_usable(communicator, [&] {
      while (const auto rank = take(*communicator, kReply, message)) {
        if (message.query != last_query) continue;  // a late reply to an earlier query
        replies.texts.at(static_cast<std::size_t>(*rank)) = message.text.data();
        --missing;
      }
    });
    std::this_thread::sleep_for(kBetweenPolls);
  }
  return replies;
}

void stop_status_queries() {
  with_communicators([](const auto&) { stopped = true; });
}

}  // namespace distdl::comm
