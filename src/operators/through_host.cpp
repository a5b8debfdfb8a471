#include "operators/through_host.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <thread>

#include "comm/progress.hpp"
#include "kernels/memory.hpp"
#include "kernels/staging.hpp"

namespace distdl::operators {

namespace {

constexpr std::int64_t kPieceBytes = 2 << 20;  // takes many times as long as starting to copy and to send it
constexpr std::int64_t kMaxPieces = 256;       // of a tensor

/// The copy of a piece on the host, when it is done.
at::Tensor copied(const kernels::CopiesToHost::Copy& copy) {
  for (int polls = 0; !copy.done.query(); ++polls) comm::patient() ? comm::pause(polls) : std::this_thread::yield();
  return copy.to;
}

}  // namespace

void through_host(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to,
                  const HostExchange& exchange) {
  kernels::CopiesToHost copies;
  std::vector<kernels::CopiesToHost::Copy> leaving;
  for (const auto& piece : from) {
    if (!piece.is_cpu() && piece.numel() > 0) leaving.push_back(copies.start(piece));
  }
  for (std::size_t i = 0; i < std::max(from.size(), to.size()); ++i) {
    const auto host = [&](const std::vector<at::Tensor>& pieces) {
      const auto& options = (i < pieces.size() ? pieces[i] : pieces.front()).options();
      return kernels::for_receiving(i < pieces.size() ? pieces[i].sizes() : at::IntArrayRef({0}), options);
    };
    const auto source = i < leaving.size() ? copied(leaving[i])
                        : i < from.size()  ? kernels::for_sending(from[i])
                                           : host(from);
    const auto target = i < to.size() && !kernels::is_staged(to[i].device()) ? to[i] : host(to);
    exchange(source, target, static_cast<std::int64_t>(i));
    if (i < to.size() && !target.is_same(to[i])) to[i].copy_(target, /*non_blocking=*/true);
  }
}

std::int64_t number_of_pieces(std::int64_t bytes) {
  return std::clamp((bytes + kPieceBytes - 1) / kPieceBytes, std::int64_t{1}, kMaxPieces);
}

std::vector<at::Tensor> pieces_of(const at::Tensor& x, bool in_pieces) {
  return pieces_of(x, in_pieces ? number_of_pieces(static_cast<std::int64_t>(x.nbytes())) : 1);
}

std::vector<at::Tensor> pieces_of(const at::Tensor& x, std::int64_t number) {
  if (number == 1) return {x};
  return x.view(-1).tensor_split(number);
}

}  // namespace distdl::operators
