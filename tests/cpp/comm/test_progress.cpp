// The queue of started work and its thread, without messages. tests/run.sh runs it under the thread sanitizer.
#include <mpi.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <thread>
#include <vector>

#include "../check.hpp"
#include "comm/ending.hpp"
#include "comm/progress.hpp"

using namespace distdl;

/// In place of MPI's functions, for which MPI would have to be initialized.
extern "C" int MPI_Query_thread(int* level) {
  *level = MPI_THREAD_MULTIPLE;
  return MPI_SUCCESS;
}

namespace {

constexpr int kMany = 2'000;

TEST(what_is_started_is_done_in_order) {
  std::vector<int> done;  // without a lock: one task runs at a time, and each sees what the tasks before it wrote
  std::vector<comm::TaskPtr> tasks;
  for (int i = 0; i < kMany; ++i) tasks.push_back(comm::start([&done, i] { done.push_back(i); }));
  tasks.back()->wait();
  CHECK_EQ(done.size(), kMany);
  CHECK(std::is_sorted(done.begin(), done.end()));
}

TEST(threads_that_start_and_wait_at_the_same_time) {
  const auto start_and_wait = [] {
    long sum = 0;  // without a lock: the tasks that this thread starts run one after the other
    std::vector<comm::TaskPtr> tasks;
    for (int i = 0; i < kMany; ++i) {
      tasks.push_back(comm::start([&sum] { ++sum; }));
      if (i % 3 == 0) tasks.back()->wait();
    }
    for (const auto& task : tasks) task->wait();
    CHECK_EQ(sum, kMany);
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(start_and_wait);
  for (auto& thread : threads) thread.join();
}

TEST(a_thread_that_starts_in_place_of_another) {
  std::vector<int> done;  // without a lock: all tasks run one after the other
  comm::TaskPtr last;
  for (int i = 0; i < kMany; ++i) comm::start([&done, i] { done.push_back(i); });
  std::thread([&, caller = comm::progress_of_this_thread()] {
    const comm::InPlaceOf scope(caller);
    for (int i = kMany; i < 2 * kMany; ++i) last = comm::start([&done, i] { done.push_back(i); });
  }).join();
  last->wait();
  CHECK_EQ(done.size(), 2 * kMany);
  CHECK(std::is_sorted(done.begin(), done.end()));
}

TEST(what_a_thread_started_is_done_after_its_end) {
  std::atomic<int> done = 0;
  comm::ProgressPtr ended;
  std::thread([&] {
    ended = comm::progress_of_this_thread();
    for (int i = 0; i < kMany; ++i) comm::start([&done] { ++done; });
  }).join();
  comm::finish_all();
  CHECK_EQ(done.load(), kMany);
  const comm::InPlaceOf scope(ended);
  comm::start([&done] { ++done; })->wait();
  CHECK_EQ(done.load(), kMany + 1);
}

TEST(threads_that_wait_for_the_same) {
  for (int i = 0; i < 200; ++i) {
    int result = 0;
    const auto task = comm::start([&] { result = 7; });
    std::atomic<int> seen = 0;
    std::vector<std::thread> threads;
    for (int j = 0; j < 3; ++j) {
      threads.emplace_back([&] {
        task->wait();
        seen += result;
      });
    }
    for (auto& thread : threads) thread.join();
    CHECK_EQ(seen.load(), 21);
  }
}

TEST(finish_all_leaves_nothing_under_way) {
  int done = 0;
  for (int i = 0; i < kMany; ++i) comm::start([&done] { ++done; });
  comm::finish_all();
  CHECK_EQ(done, kMany);
  CHECK(!comm::under_way());
}

TEST(the_thread_wakes_for_what_is_started_while_it_sleeps) {
  for (int i = 0; i < 3; ++i) {
    std::atomic<bool> done = false;
    comm::start([&done] { done = true; });
    for (int polls = 0; !done && polls < 1000; ++polls) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(done.load());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    comm::finish_all();
  }
}

TEST(it_ends_with_the_thread_that_it_serves) {
  const auto running = [] { return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}); };
  const auto before = running();
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([] {
      comm::start([] {});
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // so that it is done, and its thread sleeps
    });
  }
  for (auto& thread : threads) thread.join();
  for (int polls = 0; running() > before && polls < 500; ++polls)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(running() <= before);
}

TEST(what_is_thrown_is_thrown_where_it_is_waited_for) {
  const auto failing = comm::start([] { throw std::runtime_error("in the task"); });
  const auto next = comm::start([] {});
  next->wait();
  CHECK_THROWS(failing->wait(), "in the task");
  CHECK_THROWS(failing->wait(), "in the task");
}

TEST(the_thread_can_be_turned_off_and_on_while_it_works) {
  std::atomic<bool> stop = false;
  std::thread turning([&] {
    for (bool on = false; !stop; on = !on) comm::set_progress_thread(on);
  });
  int done = 0;
  for (int i = 0; i < kMany; ++i) {
    const auto task = comm::start([&done] { ++done; });
    if (i % 2 == 0) task->wait();
  }
  comm::finish_all();
  stop = true;
  turning.join();
  comm::set_progress_thread(true);
  CHECK_EQ(done, kMany);
}

TEST(the_thread_waits_while_a_task_is_at_work_elsewhere) {
  std::atomic<bool> at_work = false, at_the_same_time = false;
  std::thread([&] {  // which has no progress thread yet
    const auto caller = comm::progress_of_this_thread();
    comm::set_progress_thread(false);
    comm::start([&] {  // so that it is done here
      at_work = true;
      std::thread([&] {
        const comm::InPlaceOf scope(caller);
        comm::set_progress_thread(true);
        comm::start([&] { at_the_same_time = at_work.load(); });
      }).join();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      at_work = false;
    });
  })
      .join();
  comm::finish_all();
  CHECK(!at_the_same_time);
}

TEST(it_is_patient_while_nobody_waits) {
  CHECK(!comm::patient());
  std::atomic<bool> looked = false, was_patient = false;
  const auto task = comm::start([&] {
    was_patient = comm::patient();
    for (int polls = 0; comm::patient() && polls < 100; ++polls) comm::pause(polls);
    looked = true;
  });
  while (!looked) std::this_thread::yield();
  task->wait();
  CHECK(was_patient.load());
}

TEST(nothing_is_under_way_at_the_end_of_the_program) {
  std::atomic<bool> done = false;
  comm::start([&done] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    done = true;
  });
  comm::end_of_program();
  CHECK(done.load());
  comm::finish_all();
}

}  // namespace
