#include "comm/gather_texts.hpp"

#include <utility>

#include "comm/waiting.hpp"

namespace distdl::comm {

TextGather::TextGather(std::string text, const Communicator& communicator)
    : text_(std::move(text)),
      length_(static_cast<std::int64_t>(text_.size())),
      handle_(communicator.handle()),
      lengths_(static_cast<std::size_t>(communicator.size())) {
  check(MPI_Iallgather(&length_, 1, MPI_INT64_T, lengths_.data(), 1, MPI_INT64_T, handle_, &request_),
        "MPI_Iallgather");
}

bool TextGather::advance() {
  for (int completed = 0; state_ != State::done; next()) {
    check(MPI_Test(&request_, &completed, MPI_STATUS_IGNORE), "MPI_Test");
    if (completed == 0) return false;
  }
  return true;
}

std::vector<std::string> TextGather::wait() {
  const Waiting waiting;
  for (; state_ != State::done; next()) check(MPI_Wait(&request_, MPI_STATUS_IGNORE), "MPI_Wait");
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < lengths_.size(); ++r) {
    texts.push_back(all_.substr(static_cast<std::size_t>(offsets_[r]), static_cast<std::size_t>(counts_[r])));
  }
  return texts;
}

void TextGather::next() {
  state_ = state_ == State::lengths ? State::texts : State::done;
  if (state_ == State::done) return;
  std::int64_t total = 0;
  for (const auto length : lengths_) {
    offsets_.push_back(displacement_of(total, "MPI_Iallgatherv"));
    total += length;
    counts_.push_back(count_of(total, "MPI_Iallgatherv") - static_cast<Count>(offsets_.back()));
  }
  all_.resize(static_cast<std::size_t>(total));
  check(DISTDL_MPI_LARGE(MPI_Iallgatherv)(text_.data(), static_cast<Count>(length_), MPI_CHAR, all_.data(),
                                          counts_.data(), offsets_.data(), MPI_CHAR, handle_, &request_),
        "MPI_Iallgatherv");
}

std::vector<std::string> gather_texts(const Communicator& communicator, std::string text) {
  return TextGather(std::move(text), communicator).wait();
}

}  // namespace distdl::comm
