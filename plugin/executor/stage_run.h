// SPDX-License-Identifier: Apache-2.0
#pragma once
// One stage on its rank: its micro-batches between forward and backward, and what is kept for each.
//
//   std::vector<at::Tensor> outputs = run.forward(m, std::move(messages));   // messages: one per input stage
//   auto gradients = run.backward(m, received);                    // gradients[k] go to input stage k
//
// Kept from forward to backward: the graph's ends, what the graph has saved, and the received buffers among
// that. Not the outputs, and of the inputs the shapes only: one that no operator of the stage needs for its
// backward goes when the forward is over, and its buffer receives the next message. All of it is gone when
// backward() returns.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "plugin/executor/backward.h"
#include "plugin/executor/buffers.h"
#include "plugin/executor/split_backward.h"
#include "plugin/executor/stage_module.h"
#include "plugin/lowering/program.h"

namespace ostinato {

/// The outputs of one stage as another one takes them: from a peer (buffers) or from this rank (tensors).
struct Message {
  std::vector<Buffer> buffers;
  std::vector<at::Tensor> tensors;
  std::vector<bool> wants_gradient;  ///< by tensor: its maker's does; where nothing before it learns, no
                                     ///< backward goes that way

  static Message from_peer(std::vector<Buffer> buffers);
  static Message from_here(std::vector<at::Tensor> tensors);

  /// Without the buffers, which only the thread may give back that took them.
  static Message copy_of(const std::vector<Buffer>& buffers);
};

/// The gradient, or a copy where something else holds its memory: autograd adds later gradients of a weight
/// into the memory of the first, which may be a view of this one.
at::Tensor unshared(at::Tensor gradient);

class StageRun {
 public:
  StageRun(const ProgramStage& stage, int micro_batches, StageModule& module);

  /// Runs the module on the messages of its input stages, in order. Whoever hands a tensor over keeps the
  /// outputs' graph out of it: inputs become leaves here. Throws ExecutionError where the module returns
  /// something unusable.
  std::vector<at::Tensor> forward(int micro_batch, std::vector<Message> messages);

  /// Whole backward. `gradients`: one message per output stage, each with one entry per output (undefined:
  /// none); empty for a stage that feeds no other. Returns, per input stage, the gradients of what it sent
  /// (undefined: none).
  std::vector<std::vector<at::Tensor>> backward(int micro_batch, std::vector<Message> gradients);

  /// The half that the stage before waits for; arguments and result as of backward().
  std::vector<std::vector<at::Tensor>> backward_input(int micro_batch, std::vector<Message> gradients);

  /// The other half.
  void backward_weight(int micro_batch);

  /// What the micro-batch keeps goes to the host, and comes back.
  void offload(int micro_batch) { module_.offload(micro_batch); }
  void load(int micro_batch) { module_.load(micro_batch); }

  /// True once a split backward had to run whole in its first half (split_backward.h says when).
  bool ran_whole() const { return ran_whole_; }

 private:
  /// How the graph makes a gradient, once it has; nothing where it has gaps. Null where none comes.
  using KnownOrder = std::shared_ptr<std::optional<Order>>;
  static KnownOrder watch(const at::Tensor& leaf);

  struct Kept {
    std::vector<Message> messages;    ///< whose buffers the graph refers to
    std::vector<at::Tensor> inputs;   ///< leaves without data, all messages one after the other
    std::vector<KnownOrder> orders;   ///< by input: of its gradient
    std::vector<std::size_t> counts;  ///< tensors per message
    BackwardRoots roots;
    SplitBackward split;      ///< between the two halves
    std::uint64_t first = 0;  ///< sequence number of the graph's first node
    at::Tensor seed;          ///< gradient of the loss; undefined where gradients are received
    bool live = false;
  };

  std::vector<at::Tensor> run_module(int micro_batch, const std::vector<at::Tensor>& leaves);
  static void keep_shared(Kept& kept, std::vector<Message> messages);
  static std::vector<at::Tensor> roots_gradients(Kept& kept, std::vector<Message>& gradients);
  static std::vector<std::vector<at::Tensor>> take_input_gradients(Kept& kept);

  const ProgramStage& stage_;
  StageModule& module_;
  std::vector<Kept> kept_;  ///< per micro-batch
  bool ran_whole_ = false;
};

}  // namespace ostinato
