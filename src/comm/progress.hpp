// Operations that run while their caller computes: one after the other, in the order in which they were started.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <utility>

namespace distdl::comm {

/// What a thread has started, in order.
class Progress;
using ProgressPtr = std::shared_ptr<Progress>;
ProgressPtr progress_of_this_thread();

/// Within its scope, this thread starts and does what it does in the order of another: torch runs the backward pass of
/// a device in a thread of its own, on behalf of the one that waits for it.
class InPlaceOf {
 public:
  explicit InPlaceOf(ProgressPtr other);
  InPlaceOf(const InPlaceOf&) = delete;
  InPlaceOf& operator=(const InPlaceOf&) = delete;
  ~InPlaceOf();

 private:
  ProgressPtr own_;
};

/// Something that was started.
class Task {
 public:
  Task(std::function<void()> work, ProgressPtr progress) : work_(std::move(work)), progress_(std::move(progress)) {}

  /// Returns when it is done; throws what it threw. Meanwhile the caller does what is still to be done before it.
  void wait();

 private:
  friend class Progress;

  std::function<void()> work_;
  const ProgressPtr progress_;  // of the thread that started it
  std::exception_ptr error_;
  bool done_ = false;
};
using TaskPtr = std::shared_ptr<Task>;

/// Hands work over to this thread's progress thread. All ranks start in the same order what they do together, and this
/// order is kept, so that nobody waits for what somebody else does later. Where there is no such thread, the work is
/// done here.
TaskPtr start(std::function<void()> work);

/// Whether anything that this thread started is not done. What is done at once then has to wait for its turn:
/// start()->wait().
bool under_way();

/// Waits for all that any thread started.
void finish_all();

/// Whether several threads may call MPI at once.
bool thread_multiple();

/// Whether start() may use a thread: if it was not turned off, and MPI was initialized with MPI_THREAD_MULTIPLE.
bool progress_thread();
void set_progress_thread(bool on);

/// Whether the calling thread is the progress thread and nobody waits for it: then it leaves its core to others between
/// two looks at a message.
bool patient();

/// Lets others compute before the next look at a message, longer from look to look.
void pause(int looks);

}  // namespace distdl::comm
