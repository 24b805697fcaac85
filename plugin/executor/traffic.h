// SPDX-License-Identifier: Apache-2.0
#pragma once
// The transfers of one rank: what is posted, what has arrived, which buffers are held for it.
//
//   traffic.post(index);                     // receives of the list up to there, in its order
//   auto buffers = traffic.wait(index);      // one receive, at its consumer
//   traffic.send(index, tensors);            // returns at once
//   traffic.send_early(index, tensors);      // from another thread, if that changes no order
//   traffic.finish();                        // end of the step
//
// Announcements: the first message along an edge of the stage graph to a peer is preceded by its shapes, so
// the first step receives it at its place in the list and from then on ahead of need. Gradients need none:
// they look like what went forward, which a rank has made, received, or been handed on its own (learn()). A
// message that later looks different is an error that says so. What gradients do need is their order in
// memory: it precedes the first one along an edge to a peer. Later ones are laid out alike, and gradients of
// outputs that the first message lacked are contiguous.
//
// Where shapes may change (`dynamic`), one int64 before every message along an edge says whether it looks
// like the one before it to that peer (kUnchanged), or its shapes follow (kAnnounced). Such a receive is
// posted at its place in the list, where the proof lets it block, and not ahead. Where no send waits for its
// receive to be posted (Posting::anywhere), that is put off until the compute that takes it, so that a rank
// whose peer is late goes on with what it has. A gradient looks like what went forward for its micro-batch.
//
// In training, gradients that come back say which sends are over. In a program of forwards nothing comes
// back, so a send waits while as many as sends_ahead() says (flow.h) are under way to its peer: a rank that
// is quicker than the one behind it does not fill the memory of either.
//
// One thread, the rank's, may call anything. What a lane's thread may call says so: it takes the lock only
// where the rank's thread does not hold it, because that may wait for a peer while it does.
//
// On an accelerator every transfer is issued on the stream of its peer and direction (side_stream.h); all of
// this is called with the computing stream current.

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "plugin/executor/buffers.h"
#include "plugin/executor/channel.h"
#include "plugin/executor/handed_on.h"
#include "plugin/executor/itinerary.h"
#include "plugin/executor/side_stream.h"
#include "plugin/executor/tensor_spec.h"
#include "plugin/lowering/program.h"

namespace ostinato {

class Traffic {
 public:
  /// `waiting` is told the index of the instruction that is waited for, and -1 when it is over.
  Traffic(const Program& program, int rank, Channel& channel, std::chrono::nanoseconds timeout, Meter& meter,
          std::function<void(int)> waiting, bool dynamic = false);

  const Itinerary& itinerary() const { return itinerary_; }

  /// Between two steps: the program, which the constructor was given by reference, has become another one of
  /// the same stages. What is known of shapes, streams and buffers stays.
  void renew();

  /// What the channel is opened with: per peer, the most messages to it that are on their way at once; of all
  /// programs of the same transfers in whatever order (`any_order`), all of a step.
  std::map<int, int> messages(bool any_order = false) const;

  /// What stage `from` of this rank made for stage `to` of a micro-batch, or handed to it on this rank: a
  /// gradient along that edge may come from or go to a peer all the same, where one of the two stages is on
  /// more ranks.
  void learn(int from, int to, int micro_batch, const std::vector<at::Tensor>& tensors);

  /// Before each compute.
  void next_compute() { pool_.next_compute(); }

  /// Posts the receives before `index` that are not posted yet, as far as their shapes are known.
  void post_before(int index);

  /// Posts the receive at `index`, waiting for its announcement where its shapes are not known yet.
  void post(int index);

  /// The tensors that the receive at `index` brings; empty buffers stand for None and for gradients that do
  /// not exist. Throws TimeoutError or ExecutionError.
  std::vector<Buffer> wait(int index);

  /// The same in three parts, where a lane's thread waits: posts the receive, waiting for its announcement
  /// where its shapes are not known yet; waits, on any thread; and is told that the message is there.
  struct Inbound {
    std::vector<Buffer> buffers;
    std::vector<std::unique_ptr<Transfer>> transfers;  ///< one, or none where nothing travels
  };
  Inbound expect(int index);
  bool is_posted(int index);  ///< after trying to, without waiting
  void await(Inbound& message, int index);
  void arrived(int index);

  /// Activations: the stage's outputs. Gradients: one entry per output of the peer's stage; an undefined one
  /// where a gradient is due travels as zeros. Throws ExecutionError where the message does not look as
  /// announced. On an accelerator the tensors are there when `made` comes.
  void send(int index, const std::vector<at::Tensor>& tensors, const c10::Event* made = nullptr);

  /// Sends before the place in the list, on a lane's thread: where this is the next send to its peer, no more
  /// are under way than the channel was opened for, and the rank's thread is not at work here. Returns
  /// whether it did; the rank's thread sends what is left, at its place.
  bool send_early(int index, const std::vector<at::Tensor>& tensors);

  /// Waits for every send of the step.
  void finish();

  /// From another thread, where the step cannot end any more: waits end with an ExecutionError that says
  /// `why`, except for messages that are here.
  void abandon(const std::string& why);

  /// "0SEND_F3 of rank 0 (its instruction 7)": what the other side does for the transfer at `index`.
  std::string partner(int index) const;

  /// What a TimeoutError says where the instruction at `index` took too long.
  std::string late(int index) const;

 private:
  using Transfers = std::vector<std::unique_ptr<Transfer>>;
  struct Outbound {
    int index = 0;
    std::int64_t bytes = 0;  ///< held for this send alone
    Transfers transfers;   ///< the message, and before it what kind it is and its shapes where they are told
    HandedOn handed = {};  ///< of activations, those that were not copied for the message
  };

  struct Payload {
    std::vector<at::Tensor> tensors;  ///< contiguous, in the order in which they arrive
    /// As the compute made them; false: some were copied or made up on the current stream.
    bool as_made = true;
    std::int64_t bytes = 0;
  };

  /// What a message along an edge of the stage graph looks like; one for both directions.
  struct Edge {
    std::optional<MessageSpec> forward;  ///< the last one
    MessageSpec backward;
    std::map<int, std::vector<Order>> orders_to;  ///< of gradients, per peer and tensor
    std::map<int, std::vector<Order>> orders_by;
    std::map<int, MessageSpec> announced_to;    ///< per peer, the last announcement
    std::map<int, MessageSpec> of_micro_batch;  ///< gradients that will come back; where shapes may change
    /// Per peer, what it announced last; where shapes may change.
    std::map<int, MessageSpec> announced_by = {};
    void learn(MessageSpec spec);
  };

  const Instruction& at(int index) const { return program_.ranks[rank_][index]; }
  Edge& edge(const Instruction& transfer);
  using Lock = std::unique_lock<std::mutex>;
  void post_until(int index);
  bool is_posted_here(int index);
  void post_here(int index);
  void send_here(int index, const std::vector<at::Tensor>& tensors, const c10::Event* made);
  void read_announcement(int index);
  void read_orders(int index);
  void read_flag(int index);
  void note_change();  ///< of shapes
  /// Whether what the receive at `index` brings is known already.
  bool is_known(int index);
  const MessageSpec& spec_of(const Instruction& i, const Edge& edge) const;
  static const Order& order_of(const Instruction& i, const Edge& edge, std::size_t tensor);
  void announce(const Instruction& i, Edge& edge, const std::vector<at::Tensor>& tensors, Outbound& out);
  void announce_orders(const Instruction& i, Edge& edge, const std::vector<at::Tensor>& tensors,
                       Outbound& out);
  void send_words(const at::Tensor& words, int peer, Outbound& out);
  Payload payload(const Instruction& i, const Edge& edge, const std::vector<at::Tensor>& tensors) const;
  void check(const Instruction& i, const MessageSpec& spec, const std::vector<at::Tensor>& tensors) const;
  std::string name(int index) const;
  at::Tensor receive_words(std::int64_t count, int index);
  void complete(Transfers& transfers, int index);
  void await(Transfers& transfers, int index);
  bool wait_for(Transfer& transfer);
  void release_sends(int peer, int count);

  std::mutex mutex_;  ///< of all that is not said otherwise: between the rank's thread and its lanes'
  std::mutex abandoning_;
  std::string abandoned_;       ///< why; guarded, as the next ones are
  std::set<Transfer*> waited_;  ///< for now
  const Program& program_;
  int rank_;
  Channel& channel_;
  std::chrono::nanoseconds timeout_;
  Meter& meter_;
  std::function<void(int)> waiting_;
  bool dynamic_;
  bool late_;             ///< receives of unknown shapes are posted at the compute that takes them
  int ahead_;             ///< most sends to a peer that are not over; 0: no limit
  bool changed_ = false;  ///< shapes, in this step
  int flagged_ = -1;      ///< the receive whose shapes were read last; where shapes may change
  Itinerary itinerary_;
  BufferPool pool_;
  struct Streams {
    SideStream in, out;
  };
  std::map<int, Streams> streams_;                 ///< per peer
  std::map<std::pair<int, int>, Edge> edges_;      ///< by (from stage, to stage)
  std::vector<std::optional<Inbound>> inbound_;    ///< per instruction: posted and not waited for
  int next_post_ = 0;                              ///< receives before it are posted
  std::map<int, std::vector<Outbound>> outbound_;  ///< per peer, in order
  std::map<int, int> released_;                    ///< per peer: sends of this step whose buffers were let go
};

}  // namespace ostinato
