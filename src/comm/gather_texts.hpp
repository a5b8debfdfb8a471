// Gathering texts: every rank receives the texts of all ranks.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/error.hpp"

namespace distdl::comm {

/// First the lengths travel, then all texts at once. Collective over the communicator. All ranks throw where the texts
/// together are longer than this MPI library counts.
class TextGather {
 public:
  TextGather(std::string text, const Communicator& communicator);
  TextGather(const TextGather&) = delete;
  TextGather& operator=(const TextGather&) = delete;
  ~TextGather() = default;

  /// Makes progress without blocking. Returns whether all texts have arrived.
  bool advance();
  /// Waits for all texts. Returns them by rank of the communicator.
  std::vector<std::string> wait();

 private:
  enum class State { lengths, texts, done };

  /// Begins what comes after the request that has completed.
  void next();

  const std::string text_;
  const std::int64_t length_;
  const MPI_Comm handle_;
  std::vector<std::int64_t> lengths_;
  std::vector<Count> counts_;  // the lengths as MPI counts
  std::vector<Displacement> offsets_;
  std::string all_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  State state_ = State::lengths;
};

/// Every rank's text, by rank of the communicator. Collective.
std::vector<std::string> gather_texts(const Communicator& communicator, std::string text);

}  // namespace distdl::comm
