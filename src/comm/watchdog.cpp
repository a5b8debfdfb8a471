#include "comm/watchdog.hpp"

#include <mpi.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/text.hpp"
#include "comm/communicator.hpp"
#include "comm/error.hpp"
#include "comm/progress.hpp"
#include "comm/status_query.hpp"
#include "comm/waiting.hpp"

namespace distdl::comm {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr double kSleepsPerLimit = 10;  // how often the thread wakes up while a wait becomes too long
constexpr milliseconds kMinSleep{20}, kMaxSleep{1000};
constexpr milliseconds kMinPatience{1000};  // for the replies of other ranks, whose watchdogs sleep as well
constexpr int kSleepsOfPatience = 3;
constexpr milliseconds kTimeToRead{300};  // mpiexec forgets what it has not read when the job is aborted
constexpr std::size_t kHostNameSize = 256;

std::atomic<bool> debug_mode{false};

struct CurrentLocator {
  mutable std::mutex mutex;
  Locator locator;
};

/// Never destroyed: the watchdog's thread outlives the end of main.
CurrentLocator& current_locator() {
  static auto* const current = new CurrentLocator;
  return *current;
}

/// The state of a thread, for people. The caller holds the thread's mutex.
std::string described(const Thread& thread) {
  const auto activity = thread.activity.text();
  if (thread.waits_since != 0) return "waits in " + activity;
  if (thread.depth > 0) return "computes in " + activity;
  return activity.empty() ? "has made no call" : "is in no operation; the last one was " + activity;
}

/// The state of this process: of its first thread that waits, or else of its first thread in an operation.
Status described_process() {
  Status status{"has made no call", {}};
  std::uint64_t id = 0;
  int best = -1;
  for_each_thread([&](Thread& thread) {
    const std::lock_guard lock(thread.mutex);
    if (thread.waits_since != 0 && thread.awaited >= 0) status.awaiting.insert(thread.activity.communicator);
    const int priority = thread.waits_since != 0 ? 2 : thread.depth > 0 ? 1 : 0;
    if (priority <= best) return;
    best = priority;
    status.text = described(thread);
    id = thread.id;
  });
  status.text += at_line(id);
  return status;
}

std::string process_name() {
  std::array<char, kHostNameSize> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return "process " + std::to_string(getpid()) + " on " + host.data();
}

/// A wait that lasts: of which thread, and since when.
struct Wait {
  std::uint64_t thread;
  std::int64_t since;
  Activity activity;
  int awaited;  // see Thread
};

class Watchdog {
 public:
  void set(WatchdogSettings settings) {
    {
      const std::lock_guard lock(mutex_);
      settings_ = settings;
    }
    changed_.notify_all();
  }

  WatchdogSettings settings() {
    const std::lock_guard lock(mutex_);
    return settings_;
  }

  void begin() {
    const std::lock_guard lock(mutex_);
    if (running_ || settings_.seconds <= 0 || mpi_ended()) return;
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
    asks_ = thread_multiple();
    running_ = true;
    std::thread([this] { serve(); }).detach();
  }

 private:
  void serve() {
    prctl(PR_SET_NAME, "distdl-watchdog");
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, sleep_of(settings_.seconds));
      }
      try {
        if (asks_) answer_status_queries(&described_process);
        for (const auto& wait : note_waits()) report(wait);
      } catch (const std::exception&) {
        asks_ = false;  // MPI is in no state to be asked
      }
    }
  }

  /// How long the thread sleeps between two checks, if waits may last this long.
  static milliseconds sleep_of(double seconds) {
    if (seconds <= 0) return kMaxSleep;
    const std::chrono::duration<double> sleep(seconds / kSleepsPerLimit);
    return std::chrono::duration_cast<milliseconds>(
        std::clamp<std::chrono::duration<double>>(sleep, kMinSleep, kMaxSleep));
  }

  /// Notes the waits that have begun. Returns those that are due for a report: after the set number of seconds, then
  /// after twice as many, and so on.
  std::vector<Wait> note_waits() {
    const auto limit = settings().seconds;
    std::vector<Wait> result;
    if (limit <= 0) return result;
    const auto now = Clock::now().time_since_epoch();
    for_each_thread([&](Thread& thread) {
      const auto since = thread.waits_since.load();
      if (since == 0) return;
      auto& [of_wait, times] = reported_[thread.id];
      if (of_wait != since) times = 1.0;
      of_wait = since;
      if (std::chrono::duration<double>(now - Clock::duration(since)).count() < limit * times) return;
      const std::lock_guard lock(thread.mutex);
      if (!thread.activity.at_end())
        result.push_back({.thread = thread.id, .since = since, .activity = thread.activity, .awaited = thread.awaited});
    });
    return result;
  }

  void report(const Wait& wait) {
    auto& times = reported_[wait.thread].second;
    const auto replies = asked_ranks(wait);
    std::ostringstream text;
    text << wait.activity.text() << ": not all ranks have come after " << settings().seconds * times << " s; "
         << base::by_rank(replies.ranks, replies.texts) << wait.activity.hint;
    if (!still_waits(wait)) return;
    if (debugging() && times == 1.0) {
      give_up(wait, text.str());
    } else if (!replies.reported_elsewhere) {
      const auto line =
          "distdl: rank " + std::to_string(rank_) + " (" + process_name() + ") waits in " + text.str() + "\n";
      [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
      if (settings().end) {
        std::this_thread::sleep_for(kTimeToRead);
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
    }
    times *= 2;
  }

  /// The states of the operation's ranks.
  StatusReplies asked_ranks(const Wait& wait) {
    StatusReplies replies;
    if (asks_ && wait.activity.communicator != nullptr) {
      const auto patience = std::max(kMinPatience, kSleepsOfPatience * sleep_of(settings().seconds));
      replies = query_status(wait.activity.communicator, wait.awaited, patience, &described_process);
    }
    if (replies.ranks.empty()) replies = {.ranks = {rank_}, .texts = {described_process().text}};
    for (auto& text : replies.texts) {
      if (text.empty()) text = "does not answer: it has ended, or computes outside of Python";
    }
    return replies;
  }

  static bool still_waits(const Wait& wait) {
    bool waits = false;
    for_each_thread([&](Thread& thread) { waits |= thread.id == wait.thread && thread.waits_since == wait.since; });
    return waits;
  }

  static void give_up(const Wait& wait, const std::string& why) {
    for_each_thread([&](Thread& thread) {
      if (thread.id != wait.thread) return;
      const std::lock_guard lock(thread.mutex);
      thread.verdict = why;
      thread.given_up = wait.since;
    });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  WatchdogSettings settings_;
  bool running_ = false;
  std::atomic<bool> asks_ = false;
  int rank_ = 0;
  std::map<std::uint64_t, std::pair<std::int64_t, double>>
      reported_;  // by thread: the wait, and when to report it next
};

/// Never destroyed: the thread lives as long as the process.
Watchdog& the_watchdog() {
  static auto* const instance = new Watchdog;
  return *instance;
}

}  // namespace

void set_watchdog(WatchdogSettings settings) {
  the_watchdog().set(settings);
  bool needed = false;
  with_communicators([&](const auto& all) { needed = !all.empty(); });
  if (needed) begin_to_watch();
}
WatchdogSettings watchdog() { return the_watchdog().settings(); }
void begin_to_watch() { the_watchdog().begin(); }
void stop_watchdog() { stop_status_queries(); }

void set_debugging(bool on) { debug_mode = on; }
bool debugging() { return debug_mode; }

void throw_if_given_up() {
  auto& thread = this_thread();
  if (thread.given_up == 0 || thread.given_up != thread.waits_since) return;
  const std::lock_guard lock(thread.mutex);
  throw std::runtime_error(thread.verdict);
}

void set_locator(Locator locator) {
  auto& current = current_locator();
  const std::lock_guard lock(current.mutex);
  current.locator = std::move(locator);
}

std::string at_line(std::uint64_t thread) {
  const auto& current = current_locator();
  const std::lock_guard lock(current.mutex);
  const auto line = current.locator ? current.locator(thread) : std::string();
  return line.empty() ? line : ", at " + line;
}

}  // namespace distdl::comm
