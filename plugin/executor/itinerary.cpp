// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/itinerary.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <tuple>

namespace ostinato {
namespace {

using List = std::vector<Instruction>;
using Key = std::tuple<Action, int, int, int>;  ///< action, stage, micro-batch, stage on the other side or -1

using Index = std::map<Key, int>;

Index index_of(const List& list) {
  Index index;
  for (std::size_t i = 0; i < list.size(); ++i) {
    index.emplace(Key{list[i].action, list[i].stage, list[i].micro_batch, list[i].peer_stage},
                  static_cast<int>(i));
  }
  return index;
}

/// The compute that uses what `receive` brings.
int consumer(const Index& index, const Instruction& receive) {
  for (const Action action : {Action::forward, Action::backward, Action::backward_input}) {
    if ((action == Action::forward) != (receive.action == Action::receive_forward)) continue;
    const auto found = index.find({action, receive.stage, receive.micro_batch, -1});
    if (found != index.end()) return found->second;
  }
  assert(!"a receive without a consumer passed the proof");
  return -1;
}

std::vector<std::vector<int>> needs_of(const Program& program, const List& list, const Index& index) {
  std::vector<std::vector<int>> needs(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Instruction& instruction = list[i];
    if (!passes_tensors(instruction.action)) continue;
    const bool forward = instruction.action == Action::forward;
    const ProgramStage& stage = program.stages[instruction.stage];
    for (const int other : forward ? stage.inputs : stage.outputs) {
      const Action receive = forward ? Action::receive_forward : Action::receive_backward;
      const auto found = index.find({receive, instruction.stage, instruction.micro_batch, other});
      needs[i].push_back(found == index.end() ? -1 : found->second);
    }
  }
  return needs;
}

/// `needs` as needs_of() says; what a compute needs and no receive brings was made here.
std::vector<std::vector<int>> takers_of(const Program& program, const List& list,
                                        const std::vector<std::vector<int>>& needs) {
  std::map<std::tuple<bool, int, int, int>, int> count;  ///< by (forward, from stage, to stage, micro-batch)
  for (std::size_t n = 0; n < list.size(); ++n) {
    const Instruction& i = list[n];
    const bool forward = i.action == Action::forward || i.action == Action::send_forward;
    if (is_send(i.action)) ++count[{forward, i.stage, i.peer_stage, i.micro_batch}];
    const auto& others = forward ? program.stages[i.stage].inputs : program.stages[i.stage].outputs;
    for (std::size_t k = 0; k < needs[n].size(); ++k) {
      if (needs[n][k] < 0) ++count[{forward, others[k], i.stage, i.micro_batch}];
    }
  }
  std::vector<std::vector<int>> takers(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Action action = list[i].action;
    if (!passes_tensors(action)) continue;
    const bool forward = action == Action::forward;
    const ProgramStage& stage = program.stages[list[i].stage];
    for (const int to : forward ? stage.outputs : stage.inputs) {
      const auto found = count.find({forward, list[i].stage, to, list[i].micro_batch});
      takers[i].push_back(found == count.end() ? 0 : found->second);
    }
  }
  return takers;
}

/// By the compute that made what they carry.
std::vector<std::vector<int>> sends_of(const List& list, const Index& index) {
  std::vector<std::vector<int>> sends(list.size());
  for (std::size_t n = 0; n < list.size(); ++n) {
    const Instruction& i = list[n];
    if (!is_send(i.action)) continue;
    for (const Action action : {Action::forward, Action::backward, Action::backward_input}) {
      if ((action == Action::forward) != (i.action == Action::send_forward)) continue;
      const auto made = index.find({action, i.stage, i.micro_batch, -1});
      if (made != index.end()) sends[made->second].push_back(static_cast<int>(n));
    }
  }
  return sends;
}

std::vector<int> sends_before_of(const List& list) {
  std::vector<int> before(list.size(), 0);
  std::map<int, int> seen;  ///< by peer
  for (std::size_t n = 0; n < list.size(); ++n)
    if (is_send(list[n].action)) before[n] = seen[list[n].peer]++;
  return before;
}

std::vector<int> post_until_of(const Program& program, const List& list, Posting posting) {
  const int size = static_cast<int>(list.size());
  std::vector<int> until(list.size());
  int stop = size;  ///< no receive behind it is posted yet
  for (int i = size - 1; i >= 0; --i) {
    const bool compute = runs_layers(list[i].action);
    const bool send = is_send(list[i].action);
    const bool ordered = send || (compute && program.stages[list[i].stage].sharded());
    const bool passed = posting == Posting::anywhere || (posting == Posting::in_order && !ordered);
    until[i] = passed ? stop : i + 1;
    if (compute || (send && posting != Posting::anywhere)) stop = i;
  }
  return until;
}

/// For one peer: positions in its list of its sends to `rank`, and of the computes that consume rank's sends
/// to it.
struct PeerView {
  std::vector<int> sends;
  std::vector<int> consumers;
};

PeerView view_of(const List& peer, int rank) {
  const auto index = index_of(peer);
  PeerView view;
  for (std::size_t i = 0; i < peer.size(); ++i) {
    if (peer[i].peer != rank) continue;
    if (is_send(peer[i].action)) {
      view.sends.push_back(static_cast<int>(i));
    } else {
      view.consumers.push_back(consumer(index, peer[i]));
    }
  }
  return view;
}

std::map<int, int> most_sends_of(const List& list, const Itinerary& known) {
  std::map<int, int> issued, over, most;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const int peer = list[i].peer;
    for (const int receive : known.needs[i]) {
      if (receive < 0) continue;
      int& known_over = over[list[receive].peer];
      known_over = std::max(known_over, known.sends_over[receive]);
    }
    if (is_send(list[i].action)) ++issued[peer];
    if (!is_compute(list[i].action)) most[peer] = std::max(most[peer], issued[peer] - over[peer]);
  }
  return most;
}

}  // namespace

Itinerary itinerary(const Program& program, int rank, Posting posting) {
  const List& list = program.ranks[rank];
  Itinerary result;
  const Index index = index_of(list);
  result.needs = needs_of(program, list, index);
  result.takers = takers_of(program, list, result.needs);
  result.sends = sends_of(list, index);
  result.sends_before = sends_before_of(list);
  result.post_until = post_until_of(program, list, posting);
  result.sends_over.assign(list.size(), 0);
  std::map<int, PeerView> views;
  std::map<int, std::pair<std::size_t, int>> progress;  ///< per peer: receives seen, sends that are over
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!is_receive(list[i].action)) continue;
    const int peer = list[i].peer;
    if (!views.contains(peer)) views.emplace(peer, view_of(program.ranks[peer], rank));
    const PeerView& view = views.at(peer);
    auto& [received, over] = progress[peer];
    const int sent_at = view.sends[received++];
    while (over < static_cast<int>(view.consumers.size()) && view.consumers[over] < sent_at) ++over;
    result.sends_over[i] = over;
  }
  result.most_sends = most_sends_of(list, result);
  return result;
}

}  // namespace ostinato
