#include "streams.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace lagging {

namespace {

using Clock = std::chrono::steady_clock;

struct Item {
  std::function<void()> work;  // empty where the stream waits
  Moment awaited;
  Clock::time_point due;  // it is not done before
};

struct Stream {
  std::deque<Item> items;
  std::uint64_t queued = 0, done = 0;
  Clock::time_point due;  // of what was queued last
};

thread_local int falling_back = 0;
std::atomic<std::int64_t> waits{0};

class Worker {
 public:
  Worker() {
    if (const auto* const delay = std::getenv("DISTDL_TEST_DEVICE_DELAY_US")) delay_ = std::atoll(delay);
    if (const auto* const rate = std::getenv("DISTDL_TEST_DEVICE_BANDWIDTH")) bytes_per_second_ = std::atof(rate);
    std::thread([this] { work(); }).detach();
  }

  void set_schedule(Schedule schedule) {
    const std::lock_guard lock(mutex_);
    schedule_ = schedule;
  }

  void set_delay(std::int64_t microseconds) {
    const std::lock_guard lock(mutex_);
    delay_ = microseconds;
    called_.notify_one();
  }

  void enqueue(int stream, Item item, Bus bus, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto& of = streams_.at(stream);
    if (!item.work) of.due = std::max(of.due, streams_.at(item.awaited.stream).due);
    if (bus != Bus::none && bytes_per_second_ > 0) {
      const std::chrono::duration<double> time(bytes / bytes_per_second_);
      auto& free = free_.at(static_cast<std::size_t>(bus));
      free = of.due = std::max({Clock::now(), of.due, free}) + std::chrono::duration_cast<Clock::duration>(time);
    }
    item.due = of.due;
    of.items.push_back(std::move(item));
    ++of.queued;
  }

  Moment now(int stream) {
    const std::lock_guard lock(mutex_);
    return {stream, streams_.at(stream).queued};
  }

  bool has_passed(Moment moment) {
    const std::lock_guard lock(mutex_);
    return is_done(moment);
  }

  bool query(Moment moment) {
    const std::lock_guard lock(mutex_);
    const bool done = is_done(moment);
    if (!done) call(moment);
    return done;
  }

  void wait(Moment moment) {
    std::unique_lock lock(mutex_);
    if (!is_done(moment)) call(moment);
    done_.wait(lock, [&] { return is_done(moment); });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  bool is_done(Moment moment) const { return streams_.at(moment.stream).done >= moment.position; }

  void call(Moment moment) {
    if (!calls_.empty() && calls_.back() == moment) return;
    calls_.push_back(moment);
    called_.notify_one();
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto is_called = [&] { return !calls_.empty(); };
      if (delay_ == 0) {
        called_.wait(lock, [&] { return is_called() || delay_ != 0; });
      } else if (!called_.wait_for(lock, std::chrono::microseconds(delay_), is_called)) {
        run_others(lock, -1);
      }
      if (!is_called()) continue;
      const auto moment = calls_.front();
      calls_.pop_front();
      if (schedule_ == Schedule::others_first) run_others(lock, moment.stream);
      run_until(lock, moment);
    }
  }

  void run_others(std::unique_lock<std::mutex>& lock, int stream) {
    for (int other = 0; other < kDevices * kStreams; ++other) {
      if (other != stream) run_until(lock, {other, streams_.at(other).queued});
    }
  }

  void run_until(std::unique_lock<std::mutex>& lock, Moment moment) {
    auto& stream = streams_.at(moment.stream);
    while (stream.done < moment.position) {
      std::optional<Item> item(std::move(stream.items.front()));
      stream.items.pop_front();
      if (item->work) {
        std::exception_ptr error;
        lock.unlock();
        try {
          std::this_thread::sleep_until(item->due);
          item->work();
        } catch (...) {
          error = std::current_exception();
        }
        item.reset();
        lock.lock();
        if (error && !error_) error_ = error;
      } else {
        run_until(lock, item->awaited);  // which was queued before, so that this ends
      }
      ++stream.done;
    }
    done_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable called_, done_;
  std::array<Stream, kDevices * kStreams> streams_;
  std::deque<Moment> calls_;
  Schedule schedule_ = Schedule::late;
  std::int64_t delay_ = 0;
  double bytes_per_second_ = 0;            // 0: the bus takes no time
  std::array<Clock::time_point, 3> free_;  // when each direction of the bus is
  std::exception_ptr error_;
};

/// Never destroyed: its thread may be at work when the process ends.
Worker& worker() {
  static auto* const the_worker = new Worker;
  return *the_worker;
}

}  // namespace

void set_schedule(Schedule schedule) { worker().set_schedule(schedule); }
void set_delay(std::int64_t microseconds) { worker().set_delay(microseconds); }

void enqueue(int stream, std::function<void()> work, Bus bus, std::size_t bytes) {
  worker().enqueue(stream, {std::move(work), {}, {}}, bus, bytes);
}
void enqueue_wait(int stream, Moment moment) {
  if (moment.stream != stream) worker().enqueue(stream, {{}, moment, {}}, Bus::none, 0);
}
Moment now(int stream) { return worker().now(stream); }

bool has_passed(Moment moment) { return worker().has_passed(moment); }
bool query(Moment moment) { return worker().query(moment); }

void wait(Moment moment) {
  if (falling_back == 0) ++waits;
  worker().wait(moment);
}

void wait_for_device(int device) {
  if (falling_back == 0) ++waits;
  for (int stream = 0; stream < kDevices * kStreams; ++stream) {
    if (device < 0 || stream / kStreams == device) worker().wait(now(stream));
  }
}

std::int64_t synchronizations() { return waits; }

FallingBack::FallingBack() { ++falling_back; }
FallingBack::~FallingBack() { --falling_back; }

}  // namespace lagging
