#include "comm/signals.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <utility>

#include "comm/waiting.hpp"

namespace distdl::comm {

namespace {

using Handler = void (*)(int);

// The handler below may use no more than atomics and the clock.

/// A signal that programs may handle.
struct Signal {
  const int number;
  std::atomic<Handler> handler{nullptr};  // Python's
  std::atomic<bool> came{false};
};
std::array<Signal, 6> signals{{{SIGINT}, {SIGTERM}, {SIGUSR1}, {SIGUSR2}, {SIGALRM}, {SIGHUP}}};
std::atomic<int> holds{0};

std::atomic<const Thread*> main_thread{nullptr};  // where interrupts are watched
std::atomic<std::int64_t> interrupted_wait{0}, interrupted_at{0};

std::atomic<bool> requested{false}, heard{false};
std::atomic<std::int64_t> last_interrupt{0};

constexpr std::int64_t kSameInterrupt = 1'000'000'000;  // ns

std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

/// Ends the process at the second interrupt of one wait.
void end_wait() {
  const auto* const thread = main_thread.load();
  if (thread == nullptr) return;
  const auto wait = thread->waits_since.load();
  const bool again = wait != 0 && interrupted_wait == wait;
  if (again && now() - interrupted_at < kSameInterrupt) return;
  interrupted_wait = wait;
  interrupted_at = now();
  if (!again) return;
  constexpr char text[] = "distdl: interrupted twice while this rank waits for other ranks\n";
  static_cast<void>(!write(STDERR_FILENO, text, sizeof(text) - 1));
  std::signal(SIGINT, SIG_DFL);
  kill(getpid(), SIGINT);
}

/// The handler in place of Python's.
void receive(int number) {
  if (number == SIGINT) end_wait();
  for (auto& signal : signals) {
    if (signal.number != number) continue;
    if (holds > 0) {
      signal.came = true;
    } else {
      signal.handler.load()(number);
    }
  }
}

/// Whether this is a handler that Python installed for the program. The flags distinguish it from the handlers of
/// faulthandler, which show at once where a rank hangs.
bool is_pythons(const struct sigaction& action) {
  if ((action.sa_flags & (SA_SIGINFO | SA_RESTART | SA_NODEFER)) != 0) return false;
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN && action.sa_handler != &receive;
}

void take_the_place_of_python() {
  for (auto& signal : signals) {
    struct sigaction action{};
    if (sigaction(signal.number, nullptr, &action) != 0 || !is_pythons(action)) continue;
    if (signal.number == SIGINT) main_thread = nullptr;  // the program has installed another handler
    signal.handler = action.sa_handler;
    action.sa_handler = &receive;
    sigaction(signal.number, &action, nullptr);
  }
}

void hand_over() {
  for (auto& signal : signals) {
    if (signal.came.exchange(false)) signal.handler.load()(signal.number);
  }
}

}  // namespace

bool on_main_thread() {
  thread_local const bool is_main = getpid() == gettid();
  return is_main;
}

HeldSignals::HeldSignals() : holds_(on_main_thread()) {
  if (holds_ && holds++ == 0) take_the_place_of_python();
}

HeldSignals::HeldSignals(HeldSignals&& other) noexcept : holds_(std::exchange(other.holds_, false)) {}

HeldSignals& HeldSignals::operator=(HeldSignals&& other) noexcept {
  std::swap(holds_, other.holds_);
  return *this;
}

HeldSignals::~HeldSignals() {
  if (holds_ && --holds == 0) hand_over();
}

Interrupt request_interrupt() {
  const bool same = now() - last_interrupt < kSameInterrupt;
  if (same && last_interrupt != 0) return Interrupt::same;
  last_interrupt = now();
  if (!requested.exchange(true)) return Interrupt::first;
  requested = heard = false;
  return Interrupt::again;
}

void watch_interrupts() {
  take_the_place_of_python();
  main_thread = &this_thread();
}

bool interrupt_requested() { return requested; }

bool main_thread_waits() {
  const auto* const thread = main_thread.load();
  return thread != nullptr && thread->waits_since != 0;
}

void hear_of_interrupt() { heard = true; }

bool take_interrupt() {
  if (!heard.exchange(false)) return false;
  requested = false;
  last_interrupt = now();
  return true;
}

}  // namespace distdl::comm
