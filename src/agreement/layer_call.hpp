// The calls of layers that are under way on a thread: their ranks have agreed, so what is called within does not vote.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "agreement/early_send.hpp"
#include "agreement/operator_id.hpp"
#include "comm/communicator.hpp"
#include "comm/signals.hpp"

namespace distdl::agreement {

/// The operators of a layer's call whose messages were sent beside the layer's vote; null once they were applied.
struct SentBeside {
  std::array<const OperatorId*, 2> ids = {};
  int tag = kInOrder;  // of the first; see second_tag()
};

/// A call of a layer, from the agreement of its ranks to its end.
struct LayerCall {
  const void* agreement;                 // the layer's, by its address
  std::shared_ptr<const OperatorId> id;  // the layer
  std::int64_t number;                   // no other call of this process has it
  std::int64_t generation;               // see new_generation
  comm::Lock lock;                       // of the layer's ranks
  SentBeside sent = {};
  comm::HeldSignals held = {};
};

/// The number of a new generation: the calls of a layer that are alike in all that its ranks agree on, the structure of
/// its tensors and their derivatives. The number differs from that of any other generation of any layer. All ranks of a
/// layer begin a generation together, and come back to it together, though its numbers on the ranks are not the same.
std::int64_t new_generation();

/// Records that this thread is inside a layer's call.
void begin_layer_call(const void* agreement, std::shared_ptr<const OperatorId> id, std::int64_t generation,
                      comm::Lock lock, SentBeside sent = {});
/// How the messages of an operator travel in this call, if they were sent beside the vote; then they are no more.
std::optional<EarlySend> take_sent(const LayerCall& layer, const OperatorId& id);
/// Ends the innermost call of this agreement, with the calls that began within and were not ended. Does nothing if
/// there is none.
void end_layer_call(const void* agreement);
/// Whether a call of any layer is under way.
bool in_layer_call();
/// Calls of this agreement that are under way are in this generation from now on.
void change_generation(const void* agreement, std::int64_t generation);

/// The memory that an operator, or a layer within a layer, has of the calls of layers in which it was called.
///
/// What the ranks know of its input is true again in the same place of a layer's call, in the same generation. A second
/// call of the operator in the same call of the layer is another place, where it has to vote.
class LayerMemory {
 public:
  /// Records a call in the innermost call of a layer in which all of these ranks take part, so that all of them find
  /// the same one. Returns the layer's call, or null if there is none, or if this is another place in it. While
  /// debugging, null.
  const LayerCall* enter(const RankSet& ranks);

 private:
  std::vector<std::int64_t> calls_;  // under way at the last call
};

}  // namespace distdl::agreement
