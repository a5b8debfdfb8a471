// Signals that come while ranks work together. Python would run their handlers in the middle of a layer's call, and
// where a handler raises, other ranks would wait for the rest of the call for ever.
#pragma once

namespace distdl::comm {

/// Whether the caller is the thread that runs Python's handlers of signals.
bool on_main_thread();

/// While an object of it lives on the main thread, signals that the program handles in Python wait. They come to their
/// handlers afterwards. On other threads it does nothing.
class HeldSignals {
 public:
  HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals(HeldSignals&& other) noexcept;
  HeldSignals& operator=(const HeldSignals&) = delete;
  HeldSignals& operator=(HeldSignals&& other) noexcept;
  ~HeldSignals();

 private:
  bool holds_;
};

/// The effect of an interrupt (Ctrl-C). All ranks of the job hear of the `first` in their next vote. A second interrupt
/// within a second is the `same`: a terminal and mpiexec both sent it to this rank. A later interrupt, before the ranks
/// have heard of the first, comes `again`: it counts for this rank alone, which is not to wait for them.
enum class Interrupt { first, same, again };
Interrupt request_interrupt();

/// The process has a handler that calls request_interrupt(). From now on a second interrupt in one wait for other
/// ranks, where no handler can run, ends the process.
void watch_interrupts();

/// Whether that thread waits for other ranks now.
bool main_thread_waits();

/// For votes: whether this rank asks for an interrupt, and a record that all ranks of the job have heard of it.
bool interrupt_requested();
void hear_of_interrupt();

/// Whether all ranks of the job have heard of an interrupt since the last time that this was true.
bool take_interrupt();

}  // namespace distdl::comm
