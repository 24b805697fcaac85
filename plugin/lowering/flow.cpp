// SPDX-License-Identifier: Apache-2.0
#include "plugin/lowering/flow.h"

#include <cassert>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace ostinato {
namespace {

constexpr int kNoFront = -1;

/// Messages from one rank to another, in their order.
struct Stream {
  std::size_t sent = 0;
  std::size_t over = 0;             ///< this many of the oldest are consumed
  std::vector<char> consumed = {};  ///< per message
};

struct Rules {
  int ahead = 0;
  bool receives_wait = false;
  int front = kNoFront;
};

class Flow {
 public:
  Flow(const Program& program, const Rules& rules)
      : program_(program),
        rules_(rules),
        at_(program.ranks.size(), 0),
        takes_(program.ranks.size()),
        waits_for_(program.ranks.size()),
        let_in_(program.micro_batches, 0) {
    for (std::size_t r = 0; r < program.ranks.size(); ++r) add_receives(static_cast<int>(r));
  }

  bool ends() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int r = 0; r < static_cast<int>(at_.size()); ++r) {
        while (step(r)) moved = true;
      }
    }
    for (std::size_t r = 0; r < at_.size(); ++r) {
      if (at_[r] < program_.ranks[r].size()) return false;
    }
    return true;
  }

 private:
  void add_receives(int rank) {
    std::set<std::tuple<int, int, int>> announced;  ///< peer, stage there, stage here
    const std::vector<Instruction>& list = program_.ranks[rank];
    for (std::size_t k = 0; k < list.size(); ++k) {
      const Instruction& i = list[k];
      assert(i.action == Action::forward || !is_compute(i.action));
      if (!is_receive(i.action)) continue;
      Stream& stream = streams_[{i.peer, rank}];
      const std::size_t message = stream.consumed.size();
      stream.consumed.push_back(0);
      takes_[rank][{i.stage, i.micro_batch}].emplace_back(i.peer, message);
      if (announced.insert({i.peer, i.peer_stage, i.stage}).second || rules_.receives_wait)
        waits_for_[rank][k] = message;
    }
  }

  const Instruction* current(int rank) const {
    const auto& list = program_.ranks[rank];
    return at_[rank] < list.size() ? &list[at_[rank]] : nullptr;
  }

  bool step(int rank) {
    const Instruction* i = current(rank);
    if (i == nullptr) return false;
    if (is_compute(i->action)) return compute(*i);
    if (is_send(i->action)) {
      Stream& stream = streams_[{rank, i->peer}];
      if (stream.sent >= stream.over + rules_.ahead) return false;
      ++stream.sent;
    } else {
      const auto first = waits_for_[rank].find(at_[rank]);
      if (first != waits_for_[rank].end() && !is_sent(i->peer, rank, first->second)) return false;
    }
    ++at_[rank];
    return true;
  }

  bool is_sent(int from, int to, std::size_t message) { return message < streams_[{from, to}].sent; }

  bool compute(const Instruction& i) {
    const ProgramStage& stage = program_.stages[i.stage];
    const bool follows = rules_.front != kNoFront && i.stage != rules_.front && stage.inputs.empty();
    if (follows && !let_in_[i.micro_batch]) return false;
    for (const int r : stage.devices) {
      const Instruction* other = current(r);
      if (other == nullptr || !is_compute(other->action) || other->stage != i.stage ||
          other->micro_batch != i.micro_batch)
        return false;
      for (const auto& [peer, message] : takes_[r][{i.stage, i.micro_batch}]) {
        if (!is_sent(peer, r, message)) return false;
      }
    }
    if (i.stage == rules_.front) let_in_[i.micro_batch] = 1;
    for (const int r : stage.devices) {
      consume(r, {i.stage, i.micro_batch});
      ++at_[r];
    }
    return true;
  }

  void consume(int rank, const std::pair<int, int>& taker) {
    for (const auto& [peer, message] : takes_[rank][taker]) {
      Stream& stream = streams_[{peer, rank}];
      stream.consumed[message] = 1;
      while (stream.over < stream.consumed.size() && stream.consumed[stream.over]) ++stream.over;
    }
  }

  using Messages = std::vector<std::pair<int, std::size_t>>;  ///< from which rank, number

  const Program& program_;
  const Rules rules_;
  std::vector<std::size_t> at_;                                 ///< by rank
  std::map<std::pair<int, int>, Stream> streams_;               ///< by (from, to)
  std::vector<std::map<std::pair<int, int>, Messages>> takes_;  ///< by rank, then (stage, micro-batch)
  std::vector<std::map<std::size_t, std::size_t>> waits_for_;   ///< by rank, instruction: message
  std::vector<char> let_in_;                                    ///< by micro-batch: the front has run
};

}  // namespace

int sends_ahead(const Program& program, int least, bool receives_wait) {
  Rules rules{.ahead = least, .receives_wait = receives_wait};
  while (!Flow(program, rules).ends()) rules.ahead *= 2;
  return rules.ahead;
}

int front_stage(const Program& program, int least, bool receives_wait) {
  Rules rules{.ahead = sends_ahead(program, least, receives_wait), .receives_wait = receives_wait};
  for (int s = 0; s < static_cast<int>(program.stages.size()); ++s) {
    rules.front = s;
    if (program.stages[s].inputs.empty() && Flow(program, rules).ends()) return s;
  }
  return kNoFront;
}

}  // namespace ostinato
