#include "comm/questions.hpp"

#include <algorithm>
#include <array>
#include <list>
#include <numeric>
#include <thread>

#include "comm/error.hpp"

namespace distdl::comm {

namespace {

constexpr int kQuestion = 4243, kAnswer = 4244;  // tags that no operator uses
constexpr std::size_t kMostAsked = 64;
constexpr std::chrono::milliseconds kBetweenLooks{10};

struct Message {
  std::int64_t question = 0;  // which one this is, or answers
  std::array<char, 1000> text{};
};

struct Sent {
  Message message;
  MPI_Request request = MPI_REQUEST_NULL;
};

struct Asked {
  const Communicator* communicator;
  int rank;
  std::int64_t question;
};

bool stopped = false;  // guarded by with_communicators
std::list<Sent> sent;  // until MPI has read it; both belong to the thread of the watchdog
std::int64_t asked = 0;

void post(const Communicator& communicator, int rank, int tag, const Message& message) {
  auto& one = sent.emplace_back(Sent{message});
  check(MPI_Isend(&one.message, sizeof(Message), MPI_BYTE, rank, tag, communicator.handle(), &one.request),
        "MPI_Isend");
}

/// The next message of this kind, if there is one: the rank that it came from, or -1.
int take(const Communicator& communicator, int tag, Message& message) {
  int there = 0;
  MPI_Status status;
  check(MPI_Iprobe(MPI_ANY_SOURCE, tag, communicator.handle(), &there, &status), "MPI_Iprobe");
  if (there == 0) return -1;
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

std::vector<Asked> questions() {
  std::vector<Asked> result;
  Message message;
  with_usable([&](const auto& communicators) {
    std::erase_if(sent, [](Sent& one) {
      int done = 0;
      check(MPI_Test(&one.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      return done != 0;
    });
    for (const auto* communicator : communicators) {
      for (int rank = 0; (rank = take(*communicator, kQuestion, message)) >= 0;) {
        result.push_back({communicator, rank, message.question});
      }
    }
  });
  return result;
}

/// The numbers in MPI_COMM_WORLD of its first ranks.
std::vector<int> world_ranks(const Communicator& communicator, std::size_t how_many) {
  std::vector<int> ranks(how_many), result(how_many);
  std::iota(ranks.begin(), ranks.end(), 0);
  MPI_Group mine = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  check(MPI_Comm_group(communicator.handle(), &mine), "MPI_Comm_group");
  check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check(MPI_Group_translate_ranks(mine, static_cast<int>(how_many), ranks.data(), world, result.data()),
        "MPI_Group_translate_ranks");
  MPI_Group_free(&mine);
  MPI_Group_free(&world);
  return result;
}

}  // namespace

void answer_questions(const Answer& answer) {
  const auto open = questions();
  if (open.empty()) return;
  Message message;
  answer().copy(message.text.data(), message.text.size() - 1);  // with no lock held: it may take its time
  for (const auto& [communicator, rank, question] : open) {
    message.question = question;
    with_usable(communicator, [&] { post(*communicator, rank, kAnswer, message); });
  }
}

Answers ask_all(const Communicator* communicator, std::chrono::milliseconds patience, const Answer& answer) {
  Answers answers;
  std::size_t missing = 0;
  Message message{++asked, {}};
  const bool posted = with_usable(communicator, [&] {
    const auto ranks = std::min(static_cast<std::size_t>(communicator->size()), kMostAsked);
    answers = {world_ranks(*communicator, ranks), std::vector<std::string>(ranks)};
    for (int rank = 0; rank < static_cast<int>(ranks); ++rank) {
      if (rank == communicator->rank()) continue;
      post(*communicator, rank, kQuestion, message);
      ++missing;
    }
  });
  if (!posted) return answers;
  const auto me = static_cast<std::size_t>(communicator->rank());
  if (me < answers.texts.size()) answers.texts[me] = answer();
  const auto until = std::chrono::steady_clock::now() + patience;
  while (missing > 0 && std::chrono::steady_clock::now() < until) {
    answer_questions(answer);
    with_usable(communicator, [&] {
      for (int rank = 0; (rank = take(*communicator, kAnswer, message)) >= 0;) {
        if (message.question != asked) continue;  // to an earlier question, too late
        answers.texts.at(static_cast<std::size_t>(rank)) = message.text.data();
        --missing;
      }
    });
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return answers;
}

void stop_questions() {
  with_communicators([](const auto&) { stopped = true; });
}

}  // namespace distdl::comm
