// The kinds of errors that operators throw.
#pragma once

#include <atomic>
#include <stdexcept>
#include <string>

namespace distdl::base {

/// Becomes Python's TypeError; std::invalid_argument becomes ValueError, std::runtime_error RuntimeError.
class TypeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What all ranks throw at the same place: if none catches it, one rank shows it (process/ending.py).
class ThrownByAll {
 public:
  explicit ThrownByAll(bool shown_by_another) : shown_by_another_(shown_by_another) {}
  virtual ~ThrownByAll() = default;
  bool shown_by_another() const { return shown_by_another_; }

 private:
  bool shown_by_another_;
};

template <class Error>
class OfAllRanks final : public Error, public ThrownByAll {
 public:
  OfAllRanks(const std::string& text, bool shown_by_another) : Error(text), ThrownByAll(shown_by_another) {}
};

/// If set, it is called before all ranks throw, and may throw another exception instead.
inline std::atomic<void (*)(const ThrownByAll&)> before_all_throw{nullptr};

template <class Error>
[[noreturn]] void throw_on_all(const std::string& text, bool shown_by_another) {
  const OfAllRanks<Error> error(text, shown_by_another);
  if (const auto call = before_all_throw.load()) call(error);
  throw error;
}

/// Throws the exception that is handled now again: as one that all ranks throw, if it is of a rule.
[[noreturn]] inline void rethrow_of_all_ranks(bool shown_by_another) {
  try {
    throw;
  } catch (const TypeError& error) {
    throw_on_all<TypeError>(error.what(), shown_by_another);
  } catch (const std::invalid_argument& error) {
    throw_on_all<std::invalid_argument>(error.what(), shown_by_another);
  }
}

}  // namespace distdl::base
