// Messages of bytes between programs, for what is exchanged beside operators: chunks of files, blocks of arrays.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "agreement/rank_set.hpp"
#include "agreement/traffic.hpp"
#include "comm/requests.hpp"

namespace distdl::operators {

/// The messages of one call. Whoever receives knows their sizes. They are counted, and waited for, under the name of
/// the call.
class ByteMessages {
 public:
  /// Collective over these ranks of root, which have agreed on the call. Its messages have a tag of their own.
  ByteMessages(std::string call, MPI_Comm root, const std::vector<int>& ranks);

  /// Starts to receive so many bytes from a rank of root. They have arrived after wait().
  at::Tensor receive(int rank, std::int64_t size);
  /// Starts to send contiguous bytes in host memory, which must not change until wait(). A few messages at most are
  /// under way and kept; it waits for the oldest of them.
  void send(int rank, const at::Tensor& bytes);
  /// Waits for all messages.
  void wait();

 private:
  static constexpr std::size_t kSentAtOnce = 4;

  const comm::Communicator& communicator() const { return *rank_set_.communicator; }
  template <class Wait>
  void waiting(const Wait& wait);

  std::string call_;
  agreement::RankSet rank_set_;
  agreement::Counter& counter_;
  int tag_ = 0;
  comm::Requests receiving_;
  std::array<comm::Requests, kSentAtOnce> sending_;
  std::size_t oldest_ = 0;
};

}  // namespace distdl::operators
