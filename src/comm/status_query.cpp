#include "comm/status_query.hpp"

#include <algorithm>
#include <array>
#include <list>
#include <map>
#include <numeric>
#include <optional>
#include <thread>

#include "base/text.hpp"
#include "comm/error.hpp"

namespace distdl::comm {

namespace {

constexpr int kQuery = 4243, kReply = 4244;  // tags that no operator uses
constexpr int kMaxAsked = 64;
constexpr std::size_t kTextSize = 1000;
constexpr std::chrono::milliseconds kBetweenPolls{10};
constexpr int kPatienceToFollow = 5;             // times as long: each rank without a reply prints a report
constexpr std::chrono::seconds kRemembered{10};  // who asked first

struct Message {
  std::int64_t query = 0;                       // the number of the query, or of the query that this replies to
  bool awaiting = false, asked_before = false;  // of a reply: see StatusReplies
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

std::vector<int> first_ranks(const Communicator& communicator) {
  std::vector<int> ranks(static_cast<std::size_t>(std::min(communicator.size(), kMaxAsked)));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Notes who asks. Returns whether another rank has just asked on the same communicator.
bool note_asking_rank(const ReceivedQuery& received) {
  struct Asked {
    int rank;
    std::chrono::steady_clock::time_point time;
  };
  static auto* const first_asked = new std::map<const Communicator*, Asked>;  // never destroyed, as above
  const auto now = std::chrono::steady_clock::now();
  auto& first = first_asked->try_emplace(received.communicator, Asked{received.rank, now}).first->second;
  if (first.rank == received.rank || now - first.time > kRemembered) first = {received.rank, now};
  return first.rank != received.rank;
}

/// The numbers of a communicator's ranks in MPI_COMM_WORLD.
std::vector<int> world_ranks(const Communicator& communicator, const std::vector<int>& ranks) {
  std::vector<int> result(ranks.size());
  MPI_Group group = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  check(MPI_Comm_group(communicator.handle(), &group), "MPI_Comm_group");
  check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check(MPI_Group_translate_ranks(group, static_cast<int>(ranks.size()), ranks.data(), world, result.data()),
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
  const auto status = describe();  // with no lock held: it may take its time
  base::cut_to(status.text, message.text.size() - 1).copy(message.text.data(), message.text.size() - 1);
  for (const auto& received : open) {
    message.query = received.query;
    message.awaiting = status.awaiting.contains(received.communicator);
    message.asked_before = note_asking_rank(received);
    with_usable(received.communicator, [&] { post(*received.communicator, received.rank, kReply, message); });
  }
}

StatusReplies query_status(const Communicator* communicator, int awaited, std::chrono::milliseconds patience,
                           const DescribeStatus& describe) {
  StatusReplies replies;
  std::map<int, std::string*> missing;
  Message message{.query = ++last_query};
  std::string* own = nullptr;
  bool follows = false;
  const bool posted = with_usable(communicator, [&] {
    follows = awaited >= 0 && communicator->size() > kMaxAsked;
    const auto ranks = follows ? std::vector{communicator->rank(), awaited} : first_ranks(*communicator);
    replies = {.ranks = world_ranks(*communicator, ranks), .texts = std::vector<std::string>(ranks.size())};
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] == communicator->rank()) {
        own = &replies.texts[i];
        continue;
      }
      missing[ranks[i]] = &replies.texts[i];
      post(*communicator, ranks[i], kQuery, message);
    }
  });
  if (!posted) return replies;
  if (own != nullptr) *own = describe().text;
  const auto until = std::chrono::steady_clock::now() + patience * (follows ? kPatienceToFollow : 1);
  while (!missing.empty() && std::chrono::steady_clock::now() < until) {
    answer_status_queries(describe);
    with_usable(communicator, [&] {
      while (const auto rank = take(*communicator, kReply, message)) {
        const auto asked = missing.find(*rank);
        if (message.query != last_query || asked == missing.end()) continue;  // a late reply to an earlier query
        *asked->second = message.text.data();
        replies.reported_elsewhere = follows && (message.awaiting || message.asked_before);
        missing.erase(asked);
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
