// A thread that sleeps, and says who has waited for too long: in which operation, where in the program, and what the
// ranks do that are waited for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace distdl::comm {

/// After how many seconds of one wait the watchdog speaks (0: never), and whether it then ends the job.
struct WatchdogSettings {
  double seconds = 300.0;
  bool end = false;
};
void set_watchdog(WatchdogSettings settings);
WatchdogSettings watchdog();

/// Starts the thread, once, unless it is to say nothing.
void begin_to_watch();

/// MPI is about to be finalized: from now on the watchdog calls nothing of it.
void stop_watchdog();

/// In debug mode waits can be given up: what the watchdog found is thrown where the rank waits. The same on all ranks.
void set_debugging(bool on);
bool debugging();
void throw_if_given_up();  // std::runtime_error

/// Says where in the program a thread is: "train.py:12 in step: y = layer(x)"; empty if that is unknown.
using Locator = std::function<std::string(std::uint64_t thread)>;
/// Returns when the one before is no longer in use. Not to be called by who holds Python's lock.
void set_locator(Locator locator);
/// ", at train.py:12 ...", or nothing.
std::string at_line(std::uint64_t thread);

}  // namespace distdl::comm
