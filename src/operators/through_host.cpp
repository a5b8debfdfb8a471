#include "operators/through_host.hpp"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/memory.hpp"
#include "kernels/staging.hpp"

namespace distdl::operators {

namespace {

constexpr std::int64_t kPieceBytes = 2 << 20;  // takes many times as long as starting to copy and to send it
constexpr std::int64_t kMaxPieces = 256;       // of a tensor

/// The copy of a piece on the host, when it is done.
at::Tensor copied(const kernels::CopiesToHost::Copy& copy) {
  kernels::wait_for(copy.done);
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
    const auto none = [&] { return kernels::for_receiving({0}, from.front().options()); };
    const auto source = i < leaving.size() ? copied(leaving[i])
                        : i < from.size()  ? kernels::for_sending(from[i])
                                           : none();
    if (i >= to.size()) {
      exchange(source, none(), static_cast<std::int64_t>(i));
      continue;
    }
    const bool staged = kernels::is_staged(to[i].device());
    const auto target = staged ? kernels::for_receiving(to[i].sizes(), to[i].options()) : to[i];
    exchange(source, target, static_cast<std::int64_t>(i));
    if (staged) to[i].copy_(target, /*non_blocking=*/true);
  }
}

std::int64_t number_of_pieces(std::int64_t bytes) {
  return std::clamp((bytes + kPieceBytes - 1) / kPieceBytes, std::int64_t{1}, kMaxPieces);
}

std::vector<at::Tensor> pieces_of(const at::Tensor& x, bool in_pieces) {
  return cut_into(in_pieces ? number_of_pieces(static_cast<std::int64_t>(x.nbytes())) : 1, x);
}

std::vector<at::Tensor> cut_into(std::int64_t number, const at::Tensor& x) {
  if (number == 1) return {x};
  return x.view(-1).tensor_split(number);
}

}  // namespace distdl::operators
