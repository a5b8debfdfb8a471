// Operations that run while their caller computes: one after the other, in the order in which they were started.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <utility>

namespace distdl::comm {

/// The work that a thread has started, in order.
class Progress;
using ProgressPtr = std::shared_ptr<Progress>;
ProgressPtr progress_of_this_thread();

/// While it lives, this thread's operations queue up with those of another thread, on whose behalf this thread works:
/// what a program starts in one thread may go on in others.
class InPlaceOf {
 public:
  explicit InPlaceOf(ProgressPtr other);
  InPlaceOf(const InPlaceOf&) = delete;
  InPlaceOf& operator=(const InPlaceOf&) = delete;
  ~InPlaceOf();

 private:
  ProgressPtr own_;
};

/// Work that was started.
class Task {
 public:
  Task(std::function<void()> work, ProgressPtr progress) : work_(std::move(work)), progress_(std::move(progress)) {}

  /// Returns when the work is done, and throws what the work threw. Meanwhile the caller carries out work that comes
  /// before it.
  void wait();

 private:
  friend class Progress;

  std::function<void()> work_;
  const ProgressPtr progress_;  // of the thread that started it
  std::exception_ptr error_;
  bool done_ = false;
};
using TaskPtr = std::shared_ptr<Task>;

/// Hands work over to this thread's progress thread. All ranks start their common operations in the same order, and
/// this order is kept, so that no rank waits for an operation that another rank comes to later. If there is no progress
/// thread, the work is done here.
TaskPtr start(std::function<void()> work);

/// Whether any work that this thread started is not done yet. Other work then has to queue up behind it:
/// start()->wait().
bool under_way();

/// Waits for all work that any thread started.
void finish_all();

/// Whether several threads may call MPI at once.
bool thread_multiple();

/// Whether start() may use a thread: if it was not turned off, and MPI was initialized with MPI_THREAD_MULTIPLE.
bool progress_thread();
void set_progress_thread(bool on);

/// Whether the calling thread leaves its core to others between two polls of a message: a progress thread that no other
/// thread waits for, or a thread that called set_patient(true).
bool patient();
void set_patient(bool on);

/// Sleeps between two polls of a message, twice as long each time. The first polls follow each other without a pause.
void pause(int polls);

}  // namespace distdl::comm
