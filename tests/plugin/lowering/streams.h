// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks that exchange messages over streams in which nothing is buffered: an oracle for lowered programs,
// which shares nothing with search/ and plugin/lowering/ but the struct that it is told about (told()).
//
//   const Outcome outcome = run(told(program), Streams::pair);
//   outcome.hangs                      // "" or where each rank stands
//   outcome.sums == expected(model)    // what each stage has added up, by rank
//
// A rank goes through its list. It stands at a compute until the messages that it needs are there, and, where
// the stage is on several ranks, until all of them stand at it. A send or a receive is put at the end of a
// stream and the rank goes on, but with Streams::blocking. What is at the front of a stream on both of its
// ends is exchanged, if one end sends and the other one receives: a message has no name, and the receiver
// takes what comes for what it expects. Which of the things that can happen goes first changes nothing: each
// end waits for one partner only.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace ostinato::streams {

/// Which transfers of a rank wait for each other: those with the same peer (what NCCL is when made lazily),
/// those to or from the same peer (a group for each direction), all of them (NCCL when made eagerly), or all,
/// and the rank for them (send() and recv() of gloo).
enum class Streams { pair, direction, rank, blocking };

enum class Do {
  forward,
  backward,
  input_half,
  weight_half,
  send_output,
  send_gradient,
  take_output,
  take_gradient
};

struct Step {
  Do what;
  int stage, micro_batch;
  int peer = -1, peer_stage = -1;  ///< of a transfer
};

struct Stage {
  std::vector<int> ranks, from, to;
  bool learns = false;
};

struct Told {
  std::vector<Stage> stages;
  std::vector<std::vector<Step>> lists;  ///< by rank
};

using Value = std::uint64_t;
using Sums = std::map<std::pair<int, int>, Value>;  ///< by rank and stage

struct Outcome {
  std::string hangs;  ///< or what is wrong: something used before it is there
  Sums sums;
};

inline Value blend(Value a, Value b) {
  a = (a ^ (a >> 31)) * 0xff51afd7ed558ccdu + b;
  return (a ^ (a >> 33)) * 0xc4ceb9fe1a85ec53u;
}

class Ranks {
 public:
  Ranks(const Told& told, Streams streams)
      : told_(told),
        streams_(streams),
        at_(told.lists.size(), 0),
        held_(told.lists.size()),
        queues_(told.lists.size()) {}

  Outcome run() {
    for (bool moved = true; moved && wrong_.empty();) {
      moved = false;
      for (int r = 0; r < static_cast<int>(at_.size()) && wrong_.empty(); ++r) {
        while (wrong_.empty() && advance(r)) moved = true;
        while (wrong_.empty() && exchange(r)) moved = true;
      }
    }
    return {wrong_.empty() ? standing() : wrong_, sums_};
  }

 private:
  enum What { kGiven, kGradient, kMade, kMadeGradient };
  using Name = std::tuple<int, int, What, int>;  ///< stage, micro-batch, what, of which other stage
  using Key = std::pair<int, int>;               ///< which of a rank's streams

  const Step* next(int rank) const {
    const auto& list = told_.lists[rank];
    return at_[rank] < list.size() ? &list[at_[rank]] : nullptr;
  }

  static bool computes(const Step& s) { return s.what <= Do::weight_half; }
  static bool sends(const Step& s) { return s.what == Do::send_output || s.what == Do::send_gradient; }

  Key stream(const Step& s) const {
    if (streams_ == Streams::pair) return {s.peer, 0};
    if (streams_ == Streams::direction) return {s.peer, sends(s) ? 0 : 1};
    return {0, 0};
  }

  bool advance(int rank) {
    const Step* s = next(rank);
    if (s == nullptr) return false;
    if (computes(*s)) return meet(*s);
    if (streams_ == Streams::blocking && !queues_[rank][{0, 0}].empty()) return false;
    if (sends(*s) && !held_[rank].contains(made(*s))) {
      wrong_ = text(rank, *s) + " sends what is not there";
      return false;
    }
    queues_[rank][stream(*s)].push_back(*s);
    ++at_[rank];
    return true;
  }

  /// A compute on all ranks of its stage.
  bool meet(const Step& s) {
    for (const int r : told_.stages[s.stage].ranks) {
      const Step* other = next(r);
      if (other == nullptr ||
          std::tie(other->what, other->stage, other->micro_batch) != std::tie(s.what, s.stage, s.micro_batch))
        return false;
      if (streams_ == Streams::blocking && !queues_[r][{0, 0}].empty()) return false;
      if (!ready(r, s)) return false;
    }
    const Step now = s;
    for (const int r : told_.stages[now.stage].ranks) {
      compute(r, now);
      ++at_[r];
    }
    return true;
  }

  std::vector<Name> needs(const Step& s) const {
    const Stage& stage = told_.stages[s.stage];
    std::vector<Name> names;
    if (s.what == Do::forward) {
      for (const int from : stage.from) names.emplace_back(s.stage, s.micro_batch, kGiven, from);
    } else if (s.what == Do::weight_half) {
      names.emplace_back(s.stage, s.micro_batch, kMadeGradient, -1);
    } else {
      names.emplace_back(s.stage, s.micro_batch, kMade, -1);
      for (const int to : stage.to) names.emplace_back(s.stage, s.micro_batch, kGradient, to);
    }
    return names;
  }

  bool ready(int rank, const Step& s) const {
    const std::vector<Name> names = needs(s);
    return std::all_of(names.begin(), names.end(),
                       [&](const Name& name) { return held_[rank].contains(name); });
  }

  void compute(int rank, const Step& s) {
    Value value = blend(static_cast<Value>(s.stage) + 11, static_cast<Value>(s.micro_batch) + 3);
    for (const Name& name : needs(s)) value = blend(value, held_[rank][name]);
    const bool forward = s.what == Do::forward;
    if (s.what != Do::weight_half) {
      held_[rank][{s.stage, s.micro_batch, forward ? kMade : kMadeGradient, -1}] = value;
      for (const int other : forward ? told_.stages[s.stage].to : told_.stages[s.stage].from) {
        const auto& on = told_.stages[other].ranks;
        if (std::find(on.begin(), on.end(), rank) != on.end())
          held_[rank][{other, s.micro_batch, forward ? kGiven : kGradient, s.stage}] = value;
      }
    }
    if (forward) sums_[{rank, s.stage}] += value;
    if (s.what == Do::weight_half) value = held_[rank][{s.stage, s.micro_batch, kMadeGradient, -1}];
    if (s.what == Do::weight_half || s.what == Do::backward) sums_[{rank, s.stage}] += blend(value, 5);
  }

  static Name made(const Step& s) {
    return {s.stage, s.micro_batch, s.what == Do::send_output ? kMade : kMadeGradient, -1};
  }

  /// One message of this rank, if the front of one of its streams is a send for which the peer is ready.
  bool exchange(int rank) {
    for (auto& [key, queue] : queues_[rank]) {
      if (queue.empty() || !sends(queue.front())) continue;
      const Step sent = queue.front();
      Step back = sent;
      back.peer = rank;
      back.what = Do::take_output;
      auto& theirs = queues_[sent.peer][stream(back)];
      if (theirs.empty() || sends(theirs.front()) || theirs.front().peer != rank) continue;
      const Step taken = theirs.front();
      held_[sent.peer][{taken.stage, taken.micro_batch, taken.what == Do::take_output ? kGiven : kGradient,
                        taken.peer_stage}] = held_[rank][made(sent)];
      queue.pop_front();
      theirs.pop_front();
      return true;
    }
    return false;
  }

  static std::string text(int rank, const Step& s) {
    static const char* const kNames[] = {"F", "B", "I", "W", "SEND_F", "SEND_B", "RECV_F", "RECV_B"};
    return "rank " + std::to_string(rank) + ": " + std::to_string(s.stage) +
           kNames[static_cast<int>(s.what)] + std::to_string(s.micro_batch);
  }

  std::string standing() const {
    std::string all;
    for (int r = 0; r < static_cast<int>(at_.size()); ++r) {
      if (const Step* s = next(r)) all += text(r, *s) + "; ";
      for (const auto& [key, queue] : queues_[r]) {
        if (!queue.empty()) all += text(r, queue.front()) + " in a stream; ";
      }
    }
    return all;
  }

  const Told& told_;
  Streams streams_;
  std::vector<std::size_t> at_;
  std::vector<std::map<Name, Value>> held_;
  std::vector<std::map<Key, std::deque<Step>>> queues_;
  Sums sums_;
  std::string wrong_;
};

inline Outcome run(const Told& told, Streams streams) { return Ranks(told, streams).run(); }

/// What the stages add up where nothing goes wrong, straight from the model: no lists, no ranks that wait.
inline Sums expected(const std::vector<Stage>& stages, int micro_batches) {
  Sums sums;
  const int count = static_cast<int>(stages.size());
  for (int m = 0; m < micro_batches; ++m) {
    std::vector<Value> output(count), gradient(count);
    for (int s = 0; s < count; ++s) {  // in model order: stages come after those that they take from
      output[s] = blend(static_cast<Value>(s) + 11, static_cast<Value>(m) + 3);
      for (const int from : stages[s].from) output[s] = blend(output[s], output[from]);
    }
    for (int s = count - 1; s >= 0; --s) {
      gradient[s] = blend(blend(static_cast<Value>(s) + 11, static_cast<Value>(m) + 3), output[s]);
      for (const int to : stages[s].to) gradient[s] = blend(gradient[s], gradient[to]);
      for (const int rank : stages[s].ranks)
        sums[{rank, s}] += output[s] + (stages[s].learns ? blend(gradient[s], 5) : 0);
    }
  }
  return sums;
}

}  // namespace ostinato::streams
