#include "comm/drain.hpp"

#include "comm/buffered_send.hpp"
#include "comm/error.hpp"
#include "comm/progress.hpp"
#include "comm/waiting.hpp"

namespace distdl::comm {

Drain::Drain(int tag, const std::vector<int>& receivers, const Communicator& communicator)
    : tag_(tag),
      communicator_(communicator),
      sent_(static_cast<std::size_t>(communicator.size())),
      arriving_(sent_.size()),
      discarded_(kMaxBuffered) {
  for (const auto rank : receivers) ++sent_[static_cast<std::size_t>(rank)];
  check(MPI_Ialltoall(sent_.data(), 1, MPI_INT, arriving_.data(), 1, MPI_INT, communicator.handle(), &request_),
        "MPI_Ialltoall");
}

bool Drain::advance() {
  int arrived = 0;
  check(MPI_Test(&request_, &arrived, MPI_STATUS_IGNORE), "MPI_Test");
  if (arrived == 0) return false;
  for (; source_ < communicator_.size(); ++source_) {
    for (auto& left = arriving_[static_cast<std::size_t>(source_)]; left > 0; --left) {
      if (!discard_from(source_, tag_) && !discard_from(source_, second_tag(tag_))) return false;
    }
  }
  return true;
}

bool Drain::discard_from(int source, int tag) {
  int arrived = 0;
  check(MPI_Iprobe(source, tag, communicator_.handle(), &arrived, MPI_STATUS_IGNORE), "MPI_Iprobe");
  if (arrived == 0) return false;
  check(MPI_Recv(discarded_.data(), static_cast<int>(discarded_.size()), MPI_BYTE, source, tag, communicator_.handle(),
                 MPI_STATUS_IGNORE),
        "MPI_Recv");
  return true;
}

void Drain::wait() {
  const Waiting waiting;
  for (int polls = 0; !advance(); ++polls) pause(polls);
}

}  // namespace distdl::comm
