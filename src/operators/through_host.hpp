// Tensors of a device on their way through the host. Large ones go in pieces: while one is exchanged between hosts, the
// next is copied from the device, and the one before to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace distdl::operators {

/// Exchanges memory of the host between ranks: what `from` has, and what `to` gets, both of piece i. One of them has no
/// elements where the other tensor has more pieces.
using HostExchange = std::function<void(const at::Tensor& from, const at::Tensor& to, std::int64_t i)>;

/// Calls `exchange` for each two pieces, one after the other. The pieces are contiguous, on the host or on a device.
void through_host(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to, const HostExchange& exchange);

/// The number of pieces in which so many bytes travel: 1, unless they are many.
std::int64_t number_of_pieces(std::int64_t bytes);

/// The pieces in which a contiguous tensor travels if `in_pieces`: it alone, unless it is large.
std::vector<at::Tensor> pieces_of(const at::Tensor& x, bool in_pieces);
/// So many pieces of a contiguous tensor, of sizes as of balanced blocks.
std::vector<at::Tensor> cut_into(std::int64_t number, const at::Tensor& x);

}  // namespace distdl::operators
