#include "comm/failure.hpp"

#include <atomic>
#include <memory>

namespace distdl::comm {

namespace {

std::atomic<const MPIError*> first{nullptr};  // never freed
std::atomic<void (*)(const MPIError&)> throw_other{nullptr};

[[noreturn]] void raise(const MPIError& error) {
  if (const auto thrower = throw_other.load()) thrower(error);
  throw error;
}

}  // namespace

void fail(const MPIError& error) {
  auto mine = std::make_unique<const MPIError>(error);
  const MPIError* none = nullptr;
  if (first.compare_exchange_strong(none, mine.get())) static_cast<void>(mine.release());
  raise(error);
}

std::string failure() {
  const auto* const error = first.load();
  return error == nullptr ? "" : error->what();
}

void refuse_after_failure() {
  if (const auto* const error = first.load()) raise(*error);
}

void throw_errors_by(void (*thrower)(const MPIError&)) { throw_other = thrower; }

}  // namespace distdl::comm
