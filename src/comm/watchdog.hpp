// A thread that reports waits that last too long: in which operation, at which line of the program, and what the other
// ranks of the operation do meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace distdl::comm {

/// After how many seconds of one wait the watchdog reports it (0: never), and whether it then ends the job.
struct WatchdogSettings {
  static constexpr double kDefaultSeconds = 300.0;

  double seconds = kDefaultSeconds;
  bool end = false;
};
void set_watchdog(WatchdogSettings settings);
WatchdogSettings watchdog();

/// Starts the thread, unless it runs already or is never to report.
void begin_to_watch();

/// To be called before MPI is finalized: from then on the watchdog calls no function of MPI.
void stop_watchdog();

/// In debug mode waits can be given up: the watchdog's report is thrown where the rank waits. The mode has to be the
/// same on all ranks.
void set_debugging(bool on);
bool debugging();
void throw_if_given_up();  // std::runtime_error

/// Says where in the program a thread is: "train.py:12 in step: y = layer(x)"; empty if that is unknown.
using Locator = std::function<std::string(std::uint64_t thread)>;
/// Returns when the locator before is no longer in use. The caller must not hold Python's lock, which a locator needs.
void set_locator(Locator locator);
/// ", at train.py:12 ...", or nothing.
std::string at_line(std::uint64_t thread);

}  // namespace distdl::comm
