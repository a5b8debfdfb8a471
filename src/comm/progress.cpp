#include "comm/progress.hpp"

#include <mpi.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/buffered_send.hpp"
#include "comm/error.hpp"
#include "comm/waiting.hpp"

namespace distdl::comm {

namespace {

std::atomic<bool> thread_wanted{true};
thread_local Progress* served = nullptr;  // on a progress thread: what it serves
thread_local bool set_to_patient = false;

constexpr int kPollsWithoutPause = 20;
// A poll of TCP takes several microseconds from the thread that computes on this core, so polls of a long message
// become rarer (measured by benchmarks/overlap.py --wire).
constexpr std::chrono::microseconds kShortestPause{5};
constexpr int kDoublings = 7;                // to 640 microseconds
constexpr unsigned long kTimerSlack = 1000;  // ns

/// Wakes this thread when its pause is over, not up to 50 microseconds later.
void shorten_pauses() { prctl(PR_SET_TIMERSLACK, kTimerSlack); }

}  // namespace

/// The work that one thread of the program has started. A thread that waits carries out the next task itself if no task
/// is at work; the progress thread does the same, and has nothing else to do. This object lives until its tasks are
/// done and the thread that it serves has ended.
class Progress : public std::enable_shared_from_this<Progress> {
 public:
  void add(TaskPtr task) {
    {
      const std::lock_guard lock(mutex_);
      if (progress_thread() && !has_thread_) {
        std::thread([self = shared_from_this()] { self->serve(); }).detach();
        has_thread_ = true;
      }
      queue_.push_back(std::move(task));
      ++unfinished_;
    }
    changed_.notify_all();
  }

  void wait(const Task& task) {
    const Waiting waiting;
    std::unique_lock lock(mutex_);
    work_until(lock, [&] { return task.done_; });
  }

  void wait_for_all() {
    const Operation operation("what was started and not waited for");
    const Waiting waiting;
    std::unique_lock lock(mutex_);
    work_until(lock, [&] { return unfinished_ == 0; });
  }

  /// The thread that it serves has ended.
  void retire() {
    {
      const std::lock_guard lock(mutex_);
      retired_ = true;
    }
    changed_.notify_all();
  }

  bool under_way() const { return unfinished_ != 0; }
  bool waited_for() const { return waiting_ != 0; }

 private:
  template <class Condition>
  void work_until(std::unique_lock<std::mutex>& lock, const Condition& reached) {
    ++waiting_;
    while (!reached()) {
      if (!busy_ && !queue_.empty()) {
        work(lock);
      } else {
        changed_.wait(lock);
      }
    }
    --waiting_;
  }

  void serve() {
    served = this;
    prctl(PR_SET_NAME, "distdl");
    shorten_pauses();
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return !busy_ && (retired_ || !queue_.empty()); });
      if (queue_.empty()) {
        has_thread_ = false;
        return;
      }
      work(lock);
    }
  }

  void work(std::unique_lock<std::mutex>& lock) {
    const auto task = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      task->work_();
    } catch (...) {
      error = std::current_exception();
    }
    task->work_ = nullptr;
    lock.lock();
    task->error_ = error;
    task->done_ = true;
    busy_ = false;
    --unfinished_;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TaskPtr> queue_;
  bool has_thread_ = false;
  bool retired_ = false;
  bool busy_ = false;
  std::atomic<int> unfinished_ = 0;  // in the queue or at work
  std::atomic<int> waiting_ = 0;
};

namespace {

/// The work of all threads, also of threads that ended while their work is under way.
struct All {
  std::mutex mutex;
  std::vector<std::weak_ptr<Progress>> members;
};

/// Never destroyed: threads may outlive the end of main.
All& all() {
  static auto* const everything = new All;
  return *everything;
}

ProgressPtr enrolled() {
  auto progress = std::make_shared<Progress>();
  auto& [mutex, members] = all();
  const std::lock_guard lock(mutex);
  std::erase_if(members, [](const auto& member) { return member.expired(); });
  members.push_back(progress);
  return progress;
}

/// Each thread of the program has its own: operations of two threads have no common order that all ranks would keep.
ProgressPtr& progress() {
  struct Owner {
    ProgressPtr progress = enrolled();
    Owner() = default;
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;
    ~Owner() { progress->retire(); }
  };
  static thread_local Owner owner;
  return owner.progress;
}

}  // namespace

ProgressPtr progress_of_this_thread() { return progress(); }

InPlaceOf::InPlaceOf(ProgressPtr other) : own_(std::exchange(progress(), std::move(other))) {}
InPlaceOf::~InPlaceOf() { progress() = std::move(own_); }

void Task::wait() {
  progress_->wait(*this);
  if (error_) std::rethrow_exception(error_);
}

TaskPtr start(std::function<void()> work) {
  auto task = std::make_shared<Task>(std::move(work), progress());
  progress()->add(task);
  if (!progress_thread()) progress()->wait(*task);
  return task;
}

bool under_way() { return progress()->under_way(); }

void finish_all() {
  std::vector<std::shared_ptr<Progress>> members;
  {
    const std::lock_guard lock(all().mutex);
    for (const auto& member : all().members) {
      if (auto progress = member.lock()) members.push_back(std::move(progress));
    }
  }
  for (const auto& progress : members) progress->wait_for_all();
  finish_buffered_sends();
}

bool thread_multiple() {
  static const bool provided = [] {
    int level = MPI_THREAD_SINGLE;
    check(MPI_Query_thread(&level), "MPI_Query_thread");
    return level == MPI_THREAD_MULTIPLE;
  }();
  return provided;
}

bool progress_thread() { return thread_wanted && thread_multiple(); }
void set_progress_thread(bool on) { thread_wanted = on; }

bool patient() { return set_to_patient || (served != nullptr && !served->waited_for()); }

void set_patient(bool on) {
  set_to_patient = on;
  if (on) shorten_pauses();
}

void pause(int polls) {
  if (polls < kPollsWithoutPause) return;
  std::this_thread::sleep_for(kShortestPause * (1 << std::min(polls - kPollsWithoutPause, kDoublings)));
}

}  // namespace distdl::comm
