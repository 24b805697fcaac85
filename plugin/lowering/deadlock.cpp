// SPDX-License-Identifier: Apache-2.0
// 1. check_each(): every instruction names a stage, rank, micro-batch and edge that exist.
// 2. check_pairs(): messages carry no name, so the k-th send from a rank to another must belong to the k-th
//    receive there.
// 3. check_complete(): every stage runs each micro-batch once forward and, if it has a backward, once
//    backward (whole, or both halves) on each of its ranks; between the two, what it keeps leaves and comes
//    back if it is offloaded.
// 4. One execution from a work list of ranks: a rank goes on while all that its instruction needs stand at
//    theirs; what it moves is put back on the list. A compute must find its inputs on the rank, a send its
//    tensor.
// 5. If a list has not ended, stuck() says for each rank what it waits for.
// Each instruction runs once; sets of what a rank holds make that O(n log n).
#include "plugin/lowering/deadlock.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace ostinato {
namespace {

/// What a rank holds: (stage, micro-batch, what, from or for which stage).
enum class Held { activation, gradient, output, backward_done, offloaded, released, loaded };
using Item = std::tuple<int, int, Held, int>;

class Execution {
 public:
  explicit Execution(const Program& program)
      : program_(program), at_(program.ranks.size(), 0), held_(program.ranks.size()) {}

  std::string run() {
    if (std::string wrong = check_each(); !wrong.empty()) return wrong;
    if (std::string wrong = check_pairs(); !wrong.empty()) return wrong;
    if (std::string wrong = check_complete(); !wrong.empty()) return wrong;
    std::vector<int> runnable;
    for (std::size_t r = 0; r < at_.size(); ++r) runnable.push_back(static_cast<int>(r));
    while (!runnable.empty()) {
      const int rank = runnable.back();
      runnable.pop_back();
      while (const Instruction* i = current(rank)) {
        if (!meets(rank, *i)) break;
        if (is_compute(i->action)) {
          for (const int r : program_.stages[i->stage].devices) {
            if (!compute(r, *i)) return missing_input(r, *i);
            ++at_[r];
            if (r != rank) runnable.push_back(r);
          }
          continue;
        }
        const int sender = is_send(i->action) ? rank : i->peer;
        if (!produced(sender, *current(sender)))
          return where(sender, at_[sender]) + " comes before its tensor is computed";
        if (!transfer(rank, *i)) return where(rank, at_[rank]) + " receives a tensor that is already there";
        runnable.push_back(i->peer);
      }
    }
    return stuck();
  }

 private:
  const Instruction* current(int rank) const {
    const auto& list = program_.ranks[rank];
    return at_[rank] < list.size() ? &list[at_[rank]] : nullptr;
  }

  std::string where(int rank, std::size_t index) const {
    const Instruction& i = program_.ranks[rank][index];
    std::string text =
        "rank " + std::to_string(rank) + ", instruction " + std::to_string(index) + " (" + to_string(i) + ")";
    if (is_send(i.action)) text += " to rank " + std::to_string(i.peer);
    if (is_receive(i.action)) text += " from rank " + std::to_string(i.peer);
    return text;
  }

  bool valid_stage(int stage, int rank) const {
    return stage >= 0 && stage < static_cast<int>(program_.stages.size()) && program_.stages[stage].on(rank);
  }

  /// Does the edge of the transfer exist? Activations go along it, gradients back.
  bool valid_edge(const Instruction& i) const {
    const bool towards_peer = i.action == Action::send_forward || i.action == Action::receive_backward;
    const int from = towards_peer ? i.stage : i.peer_stage;
    const int to = towards_peer ? i.peer_stage : i.stage;
    for (const int output : program_.stages[from].outputs) {
      if (output == to) return true;
    }
    return false;
  }

  std::string check_each() const {
    const int ranks = static_cast<int>(program_.ranks.size());
    for (const ProgramStage& stage : program_.stages) {
      const bool ascending =
          std::ranges::adjacent_find(stage.devices, std::greater_equal<>()) == stage.devices.end();
      if (stage.devices.empty() || !ascending || stage.devices.front() < 0 || stage.devices.back() >= ranks)
        return "stage '" + stage.name + "' has no ranks, or ranks that do not exist";
    }
    for (int r = 0; r < ranks; ++r) {
      for (std::size_t k = 0; k < program_.ranks[r].size(); ++k) {
        const Instruction& i = program_.ranks[r][k];
        if (!valid_stage(i.stage, r)) return where(r, k) + " runs a stage that is not on this rank";
        if (i.micro_batch < 0 || i.micro_batch >= program_.micro_batches) {
          return where(r, k) + " has no such micro-batch";
        }
        if (is_compute(i.action)) continue;
        if (i.peer < 0 || i.peer >= ranks || i.peer == r || !valid_stage(i.peer_stage, i.peer)) {
          return where(r, k) + " names a stage that is not on that rank";
        }
        if (!valid_edge(i)) return where(r, k) + " follows no edge between the two stages";
      }
    }
    return "";
  }

  static bool partners(const Instruction& a, const Instruction& b) {
    return a.action == opposite(b.action) && a.stage == b.peer_stage && a.peer_stage == b.stage &&
           a.micro_batch == b.micro_batch;
  }

  /// Messages of a directed pair carry no name: the k-th send must be meant for the k-th receive.
  std::string check_pairs() const {
    std::map<std::pair<int, int>, std::vector<std::size_t>> sends, receives;
    for (int r = 0; r < static_cast<int>(program_.ranks.size()); ++r) {
      for (std::size_t k = 0; k < program_.ranks[r].size(); ++k) {
        const Instruction& i = program_.ranks[r][k];
        if (is_send(i.action)) sends[{r, i.peer}].push_back(k);
        if (is_receive(i.action)) receives[{i.peer, r}].push_back(k);
      }
    }
    for (const auto& [pair, list] : receives) sends[pair];
    for (const auto& [pair, sent] : sends) {
      const auto& received = receives[pair];
      for (std::size_t k = 0; k < std::max(sent.size(), received.size()); ++k) {
        if (k >= received.size()) return where(pair.first, sent[k]) + " has no receive";
        if (k >= sent.size()) return where(pair.second, received[k]) + " has no send";
        if (!partners(program_.ranks[pair.first][sent[k]], program_.ranks[pair.second][received[k]])) {
          return where(pair.first, sent[k]) + " meets " + where(pair.second, received[k]) + ": message " +
                 std::to_string(k) + " of this pair is not the one that the receiver expects";
        }
      }
    }
    return "";
  }

  /// Every stage runs every micro-batch once on each of its ranks, and its backward, whole or in two halves,
  /// too.
  std::string check_complete() const {
    std::map<std::tuple<int, int, int>, std::map<Action, int>> count;  ///< by stage, rank, micro-batch
    for (int r = 0; r < static_cast<int>(program_.ranks.size()); ++r) {
      for (std::size_t k = 0; k < program_.ranks[r].size(); ++k) {
        const Instruction& i = program_.ranks[r][k];
        if (!is_compute(i.action)) continue;
        if (++count[{i.stage, r, i.micro_batch}][i.action] > 1)
          return where(r, k) + " occurs twice in the program";
      }
    }
    for (int s = 0; s < static_cast<int>(program_.stages.size()); ++s) {
      const ProgramStage& stage = program_.stages[s];
      for (const int rank : stage.devices) {
        for (int m = 0; m < program_.micro_batches; ++m) {
          if (once_each(stage, count[{s, rank, m}])) continue;
          return "stage '" + stage.name + "' on rank " + std::to_string(rank) + " does not run micro-batch " +
                 std::to_string(m) + " exactly once forward" +
                 (stage.has_backward ? " and once backward" : "");
        }
      }
    }
    return "";
  }

  static bool once_each(const ProgramStage& stage, std::map<Action, int>& done) {
    const int whole = done[Action::backward];
    const int halves = done[Action::backward_input] + done[Action::backward_weight];
    for (const Action action : {Action::offload, Action::release, Action::load})
      if (done[action] != (stage.offload.empty() ? 0 : 1)) return false;
    if (done[Action::forward] != 1) return false;
    if (!stage.has_backward) return whole == 0 && halves == 0;
    return (whole == 1 && halves == 0) || (whole == 0 && halves == 2);
  }

  bool holds(int rank, const Item& item) const { return held_[rank].contains(item); }

  /// Runs the compute if what it needs is on the rank.
  bool compute(int rank, const Instruction& i) {
    const ProgramStage& stage = program_.stages[i.stage];
    const int m = i.micro_batch;
    if (i.action == Action::forward) {
      for (const int from : stage.inputs) {
        if (!holds(rank, {i.stage, m, Held::activation, from})) return false;
      }
      put(rank, {i.stage, m, Held::output, -1});
      for (const int to : stage.outputs) hand_over(rank, to, m, Held::activation, i.stage);
      return true;
    }
    if (i.action == Action::backward_weight) return holds(rank, {i.stage, m, Held::backward_done, -1});
    if (!holds(rank, {i.stage, m, Held::output, -1})) return false;
    if (is_offloading(i.action)) return follows(rank, i);
    if (!stage.offload.empty() && !holds(rank, {i.stage, m, Held::loaded, -1})) return false;
    for (const int from : stage.outputs) {
      if (!holds(rank, {i.stage, m, Held::gradient, from})) return false;
    }
    put(rank, {i.stage, m, Held::backward_done, -1});
    for (const int to : stage.inputs) hand_over(rank, to, m, Held::gradient, i.stage);
    return true;
  }

  /// Out, gone, and back again.
  bool follows(int rank, const Instruction& i) {
    const auto item = [&](Held what) { return Item{i.stage, i.micro_batch, what, -1}; };
    if (i.action == Action::offload) return put(rank, item(Held::offloaded));
    if (!holds(rank, item(Held::offloaded))) return false;
    if (i.action == Action::release) return put(rank, item(Held::released));
    return holds(rank, item(Held::released)) && put(rank, item(Held::loaded));
  }

  bool produced(int rank, const Instruction& send) const {
    const Held what = send.action == Action::send_forward ? Held::output : Held::backward_done;
    return holds(rank, {send.stage, send.micro_batch, what, -1});
  }

  /// False where it is there already.
  bool put(int rank, const Item& item) { return held_[rank].insert(item).second; }

  void hand_over(int rank, int to, int micro_batch, Held what, int from) {
    if (program_.stages[to].on(rank)) put(rank, {to, micro_batch, what, from});
  }

  static bool same_compute(const Instruction& a, const Instruction& b) {
    return a.action == b.action && a.stage == b.stage && a.micro_batch == b.micro_batch;
  }

  /// All ranks that run the instruction together stand at it: both sides of a transfer, all ranks of a stage.
  bool meets(int rank, const Instruction& i) const {
    if (is_compute(i.action)) {
      return std::ranges::all_of(program_.stages[i.stage].devices,
                                 [&](int r) { return current(r) && same_compute(i, *current(r)); });
    }
    const Instruction* other = current(i.peer);
    return other && other->peer == rank && partners(i, *other);
  }

  bool transfer(int rank, const Instruction& i) {
    const int receiver = is_receive(i.action) ? rank : i.peer;
    const Instruction& r = is_receive(i.action) ? i : *current(i.peer);
    const Held what = r.action == Action::receive_forward ? Held::activation : Held::gradient;
    if (!put(receiver, {r.stage, r.micro_batch, what, r.peer_stage})) return false;
    ++at_[rank];
    ++at_[i.peer];
    return true;
  }

  std::string missing_input(int rank, const Instruction& i) const {
    return where(rank, at_[rank]) + " runs before " +
           (i.action == Action::forward ? "its inputs are there"
            : is_offloading(i.action)   ? "what it copies or frees is there"
                                        : "its forward, its gradients or its input half are there");
  }

  std::string stuck() const {
    std::string text;
    for (int r = 0; r < static_cast<int>(at_.size()); ++r) {
      const Instruction* i = current(r);
      if (!i) continue;
      text += (text.empty() ? "deadlock without buffering: " : "; ") + where(r, at_[r]) + " waits";
      const int peer = absent(*i);
      text += current(peer) ? " for " + where(peer, at_[peer])
              : i->peer < 0 ? ", and rank " + std::to_string(peer) + " has ended"
                            : ", and that rank has ended";
    }
    return text;
  }

  /// The rank that keeps an instruction waiting: the peer, or the first of a stage's ranks that is elsewhere.
  int absent(const Instruction& i) const {
    if (!is_compute(i.action)) return i.peer;
    for (const int r : program_.stages[i.stage].devices) {
      if (!current(r) || !same_compute(i, *current(r))) return r;
    }
    return program_.stages[i.stage].devices[0];
  }

  const Program& program_;
  std::vector<std::size_t> at_;       ///< per rank: the instruction that is next
  std::vector<std::set<Item>> held_;  ///< per rank
};

}  // namespace

DeadlockProof prove_deadlock_free(const Program& program) { return {Execution(program).run()}; }

}  // namespace ostinato
