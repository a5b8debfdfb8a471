#include "comm/buffered_send.hpp"

#include <mpi.h>

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/error.hpp"
#include "comm/waiting.hpp"

namespace distdl::comm {

namespace {

constexpr std::size_t kMaxBufferedMessages = 1024;  // 8 MiB at most

/// A message that MPI may still read. It is not freed where MPI fails.
struct BufferedMessage {
  std::vector<char> bytes;
  MPI_Request request = MPI_REQUEST_NULL;
};

struct BufferedMessages {
  std::mutex mutex;
  std::deque<BufferedMessage*> in_order;
};

/// Never destroyed: MPI may read the messages up to its end.
BufferedMessages& buffered_messages() {
  static auto* const messages = new BufferedMessages;
  return *messages;
}

/// Returns whether the message has been sent, and frees it then.
bool freed_if_sent(BufferedMessage* message) {
  int sent = 0;
  check(MPI_Test(&message->request, &sent, MPI_STATUS_IGNORE), "MPI_Test");
  if (sent != 0) delete message;
  return sent != 0;
}

/// Waits for the oldest message. Returns whether there was any.
bool finish_oldest() {
  BufferedMessage* oldest = nullptr;
  {
    auto& [mutex, in_order] = buffered_messages();
    const std::lock_guard lock(mutex);
    if (in_order.empty()) return false;
    oldest = in_order.front();
    in_order.pop_front();
  }
  check(MPI_Wait(&oldest->request, MPI_STATUS_IGNORE), "MPI_Wait");
  delete oldest;
  return true;
}

}  // namespace

void send_buffered(const void* bytes, std::size_t size, int rank, int tag, const Communicator& communicator) {
  const auto* const first = static_cast<const char*>(bytes);
  auto message = std::make_unique<BufferedMessage>(BufferedMessage{{first, first + size}});
  check(DISTDL_MPI_LARGE(MPI_Isend)(message->bytes.data(), static_cast<Count>(size), MPI_BYTE, rank, tag,
                                    communicator.handle(), &message->request),
        "MPI_Isend");
  bool too_many = false;
  {
    auto& [mutex, in_order] = buffered_messages();
    const std::lock_guard lock(mutex);
    in_order.push_back(message.release());
    while (!in_order.empty() && freed_if_sent(in_order.front())) in_order.pop_front();
    too_many = in_order.size() > kMaxBufferedMessages;
  }
  if (!too_many) return;
  const Waiting waiting;
  finish_oldest();
}

void finish_buffered_sends() {
  const Operation operation("sending the last messages");
  const Waiting waiting;
  while (finish_oldest()) {
  }
}

}  // namespace distdl::comm
