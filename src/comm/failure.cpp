#include "comm/failure.hpp"

#include <atomic>
#include <memory>

namespace distdl::comm {

namespace {

// Never freed.
std::atomic<const MPIError*> first{nullptr};
std::atomic<const std::string*> first_out_of_step{nullptr};

/// Keeps the first value of all; later values are ignored.
template <class T>
void keep_first(std::atomic<const T*>& kept, const T& value) {
  auto candidate = std::make_unique<const T>(value);
  const T* none = nullptr;
  if (kept.compare_exchange_strong(none, candidate.get())) static_cast<void>(candidate.release());
}

std::atomic<void (*)(const MPIError&)> throw_other{nullptr};

[[noreturn]] void raise(const MPIError& error) {
  if (const auto thrower = throw_other.load()) thrower(error);
  throw error;
}

}  // namespace

void fail(const MPIError& error) {
  keep_first(first, error);
  raise(error);
}

std::string failure() {
  const auto* const error = first.load();
  return error == nullptr ? "" : error->what();
}

void refuse_after_failure() {
  if (const auto* const error = first.load()) raise(*error);
}

void fall_out_of_step(const std::string& why) { keep_first(first_out_of_step, why); }

std::string out_of_step() {
  const auto* const why = first_out_of_step.load();
  return why == nullptr ? "" : *why;
}

void throw_errors_by(void (*thrower)(const MPIError&)) { throw_other = thrower; }

}  // namespace distdl::comm
