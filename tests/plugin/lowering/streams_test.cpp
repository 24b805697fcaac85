// SPDX-License-Identifier: Apache-2.0
// Random models under random schedules, lowered and run by an oracle that shares no code with lowering and
// its proof (streams.h), over streams without buffering of three kinds and with transfers that block. Then
// the same with lists in which instructions were moved: what the proof lets pass must run.
//
// OSTINATO_SOAK_PROGRAMS=1000000 OSTINATO_SOAK_SEED=7 lowering_tests --gtest_filter='RandomPrograms.*'

#include "tests/plugin/lowering/streams.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <set>
#include <tuple>

#include "plugin/lowering/deadlock.h"
#include "plugin/lowering/lower.h"

namespace ostinato {
namespace {

using streams::Streams;
using streams::Told;

constexpr Streams kStreams[] = {Streams::pair, Streams::direction, Streams::rank, Streams::blocking};

std::int64_t asked(const char* variable, std::int64_t otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::strtoll(value, nullptr, 10);
}

/// The test's own numbers: a program is known by its seed.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  /// In [0, bound).
  int below(int bound) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int>((state_ >> 33) % static_cast<std::uint64_t>(bound));
  }
  bool percent(int chance) { return below(100) < chance; }

 private:
  std::uint64_t state_;
};

struct Model {
  std::vector<streams::Stage> stages;
  std::vector<bool> split;  ///< by stage
  int ranks = 1, micro_batches = 1;
};

/// Up to 7 stages on up to 5 ranks, at times more: chains or graphs, several stages a rank, some on several
/// ranks.
Model random_model(Draw& draw) {
  Model model;
  const bool large = draw.percent(2);
  model.ranks = 1 + draw.below(large ? 16 : 5);
  model.micro_batches = 1 + draw.below(large ? 12 : 5);
  const int stages = 1 + draw.below(large ? 24 : 7);
  const bool trains = draw.percent(85), chain = draw.percent(50), shards = draw.percent(30),
             halves = draw.percent(50);
  for (int s = 0; s < stages; ++s) {
    streams::Stage stage{.ranks = {draw.below(model.ranks)}, .from = {}, .to = {}, .learns = trains};
    for (int r = 0; shards && draw.percent(40) && r < model.ranks; ++r) {
      if (r != stage.ranks[0] && draw.percent(50)) stage.ranks.push_back(r);
    }
    std::sort(stage.ranks.begin(), stage.ranks.end());
    for (int from = 0; from < s; ++from) {
      if (chain ? from == s - 1 : from == s - 1 ? draw.percent(80) : draw.percent(20))
        stage.from.push_back(from);
    }
    for (const int from : stage.from) model.stages[from].to.push_back(s);
    model.stages.push_back(stage);
    model.split.push_back(halves && draw.percent(70));
  }
  return model;
}

Block block(const Model& model, int stage, const char* suffix, Kind kind, Draw& draw) {
  const std::string name = "s" + std::to_string(stage);
  return {.name = name + suffix,
          .stage = name,
          .kind = kind,
          .devices = model.stages[stage].ranks,
          .time = draw.below(6),
          .memory = 0,
          .after = {}};
}

Placement placed(const Model& model, Draw& draw) {
  Placement p;
  p.name = "random";
  p.devices.resize(model.ranks);
  p.link.latency = draw.percent(50) ? 0 : draw.below(8);
  const int stages = static_cast<int>(model.stages.size());
  for (int s = 0; s < stages; ++s) {
    Block forward = block(model, s, ".F", Kind::forward, draw);
    for (const int from : model.stages[s].from) forward.after.push_back({from, 1 + draw.below(9)});
    p.blocks.push_back(forward);
  }
  std::vector<int> back(stages, -1);
  for (int s = stages - 1; s >= 0 && model.stages[0].learns; --s) {
    Block backward = block(model, s, ".B", model.split[s] ? Kind::backward_input : Kind::backward, draw);
    backward.after.push_back({s, 0});
    for (const int to : model.stages[s].to) backward.after.push_back({back[to], 1 + draw.below(9)});
    back[s] = static_cast<int>(p.blocks.size());
    p.blocks.push_back(backward);
    if (!model.split[s]) continue;
    Block weights = block(model, s, ".W", Kind::backward_weight, draw);
    weights.after.push_back({back[s], 0});
    p.blocks.push_back(weights);
  }
  return p;
}

/// Steps in any order that dependencies allow, each as soon as its inputs and its devices are there, or
/// later.
Plan random_schedule(const Placement& p, int micro_batches, Draw& draw) {
  Plan plan;
  plan.placement_name = p.name;
  plan.micro_batches = micro_batches;
  const int blocks = static_cast<int>(p.blocks.size());
  std::vector<Nanoseconds> end(blocks * micro_batches, -1), free(p.devices.size(), 0);
  const bool in_order = draw.percent(50);
  std::vector<std::pair<int, int>> open;
  for (int b = 0; b < blocks; ++b) {
    for (int m = 0; m < micro_batches; ++m) open.emplace_back(b, m);
  }
  while (!open.empty()) {
    std::vector<std::size_t> can;
    for (std::size_t i = 0; i < open.size(); ++i) {
      const auto [b, m] = open[i];
      const auto done = [&](const Dependency& d) { return end[d.block * micro_batches + m] >= 0; };
      const auto& after = p.blocks[b].after;
      const bool turn = !in_order || m == 0 || end[b * micro_batches + m - 1] >= 0;
      if (turn && std::all_of(after.begin(), after.end(), done)) can.push_back(i);
    }
    const std::size_t chosen = can[draw.below(static_cast<int>(can.size()))];
    const auto [b, m] = open[chosen];
    Nanoseconds start = draw.percent(10) ? draw.below(20) : 0;
    for (const Dependency& d : p.blocks[b].after) {
      Nanoseconds latest = 0;  // to each device from whichever has it; never too early with the slowest
      for (const int to : p.blocks[b].devices) {
        for (const int from : p.blocks[d.block].devices) {
          if (from != to) latest = std::max(latest, p.link_between(from, to).time(d.bytes));
        }
      }
      start = std::max(start, end[d.block * micro_batches + m] + latest);
    }
    for (const int device : p.blocks[b].devices) start = std::max(start, free[device]);
    plan.schedule.push_back({b, m, start});
    end[b * micro_batches + m] = start + p.blocks[b].time;
    for (const int device : p.blocks[b].devices) free[device] = end[b * micro_batches + m];
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
  for (const Nanoseconds last : end) plan.makespan = std::max(plan.makespan, last);
  return plan;
}

streams::Do told(Action action) {
  switch (action) {
    case Action::forward:
      return streams::Do::forward;
    case Action::backward:
      return streams::Do::backward;
    case Action::backward_input:
      return streams::Do::input_half;
    case Action::backward_weight:
      return streams::Do::weight_half;
    case Action::send_forward:
      return streams::Do::send_output;
    case Action::send_backward:
      return streams::Do::send_gradient;
    case Action::receive_forward:
      return streams::Do::take_output;
    default:
      return streams::Do::take_gradient;
  }
}

/// The lists of a program for a model whose stages it has in that order.
Told told(const Program& program, const Model& model) {
  Told made{model.stages, {}};
  for (const auto& list : program.ranks) {
    auto& steps = made.lists.emplace_back();
    for (const Instruction& i : list)
      steps.push_back({told(i.action), i.stage, i.micro_batch, i.peer, i.peer_stage});
  }
  return made;
}

/// One instruction or two that change places, or one that goes elsewhere, on one rank.
void disturb(Program& program, Draw& draw) {
  for (int times = 1 + draw.below(3); times > 0; --times) {
    auto& list = program.ranks[draw.below(static_cast<int>(program.ranks.size()))];
    if (list.size() < 2) continue;
    const auto any = [&] { return static_cast<std::ptrdiff_t>(draw.below(static_cast<int>(list.size()))); };
    const std::ptrdiff_t a = any(), b = draw.percent(50) ? any()
                                                         : std::min<std::ptrdiff_t>(a + 1 + draw.below(3),
                                                                                    std::ssize(list) - 1);
    if (draw.percent(50)) {
      std::swap(list[a], list[b]);
    } else {
      const auto from = list.begin() + std::min(a, b), to = list.begin() + std::max(a, b);
      std::rotate(from, from + 1, to + 1);
    }
  }
}

struct Drawn {
  Model model;
  Program program;
};

/// The model that the seed stands for. Placements have stages in model order, so indices are the same.
Drawn drawn(std::uint64_t seed) {
  Draw draw(seed);
  Drawn made{random_model(draw), {}};
  const Placement placement = placed(made.model, draw);
  made.program = lower(random_schedule(placement, made.model.micro_batches, draw), placement);
  return made;
}

/// "" where the program runs over the streams and computes what the model does.
std::string wrong_with(const Drawn& it, Streams streams, const streams::Sums& expected) {
  const streams::Outcome outcome = streams::run(told(it.program, it.model), streams);
  if (!outcome.hangs.empty()) return outcome.hangs;
  return outcome.sums == expected ? "" : "other numbers";
}

std::string all_of(const Program& program) {
  std::string text;
  for (const auto& list : program.ranks) {
    for (const Instruction& i : list)
      text += to_string(i) + (is_compute(i.action) ? " " : ">" + std::to_string(i.peer) + " ");
    text += '\n';
  }
  return text;
}

/// A stage's tensor goes to one rank for two of its stages.
bool same_tensor_twice(const Program& program) {
  for (const auto& list : program.ranks) {
    std::set<std::tuple<Action, int, int, int>> sent;
    for (const Instruction& i : list) {
      if (is_send(i.action) && !sent.emplace(i.action, i.stage, i.micro_batch, i.peer).second) return true;
    }
  }
  return false;
}

TEST(RandomPrograms, RunOverStreamsWithoutBuffering) {
  const std::int64_t count = asked("OSTINATO_SOAK_PROGRAMS", 30'000), first = asked("OSTINATO_SOAK_SEED", 1);
  std::int64_t transfers = 0;
  for (std::int64_t seed = first; seed < first + count; ++seed) {
    const Drawn it = drawn(static_cast<std::uint64_t>(seed));
    const streams::Sums expected = streams::expected(it.model.stages, it.model.micro_batches);
    for (const Streams streams : kStreams) {
      ASSERT_EQ(wrong_with(it, streams, expected), "")
          << "seed " << seed << ", streams " << static_cast<int>(streams) << "\n"
          << all_of(it.program);
    }
    for (const auto& list : it.program.ranks)
      transfers +=
          std::count_if(list.begin(), list.end(), [](const Instruction& i) { return !is_compute(i.action); });
  }
  EXPECT_GT(transfers, 10 * count);
  std::cout << count << " programs, " << transfers << " instructions of transfers\n";
}

/// No escape: what the proof lets pass runs. And what runs with transfers that block is let pass, with one
/// exception: a tensor that several stages of a rank take is sent once for each, and the receiver may name
/// the stages in another order than the sender. The same bits arrive, but the names in messages, traces and
/// shape announcements would be wrong, so the proof asks for one order.
TEST(RandomPrograms, DisturbedOnesPassTheProofExactlyWhereTheyRun) {
  const std::int64_t count = asked("OSTINATO_SOAK_PROGRAMS", 30'000), first = asked("OSTINATO_SOAK_SEED", 1);
  std::int64_t passed = 0, hung = 0, misnamed = 0;
  for (std::int64_t seed = first; seed < first + count; ++seed) {
    Drawn it = drawn(static_cast<std::uint64_t>(seed));
    Draw draw(static_cast<std::uint64_t>(seed) ^ 0x5bd1e995u);
    disturb(it.program, draw);
    const streams::Sums expected = streams::expected(it.model.stages, it.model.micro_batches);
    const std::string refused = prove_deadlock_free(it.program).failure;
    if (!refused.empty()) {
      const std::string blocked = wrong_with(it, Streams::blocking, expected);
      if (blocked.empty()) {
        ++misnamed;
        ASSERT_TRUE(refused.ends_with("is not the one that the receiver expects") &&
                    same_tensor_twice(it.program))
            << "seed " << seed << " runs, and is refused: " << refused << "\n"
            << all_of(it.program);
      }
      hung += !blocked.empty() && blocked != "other numbers";
      continue;
    }
    ++passed;
    for (const Streams streams : kStreams) {
      ASSERT_EQ(wrong_with(it, streams, expected), "")
          << "seed " << seed << " escaped, streams " << static_cast<int>(streams) << "\n"
          << all_of(it.program);
    }
  }
  EXPECT_GT(passed, count / 20);
  EXPECT_GT(hung, count / 20);
  EXPECT_LT(misnamed, count / 20);
  std::cout << count << " disturbed programs: " << passed << " pass, " << hung << " do not run, " << misnamed
            << " are misnamed\n";
}

/// The oracle itself: it sees what gloo and NCCL do.
TEST(Oracle, TellsTheKindsOfStreamsApart) {
  // Both ranks send before they receive: that blocks, and waits for ever in one stream for both directions.
  const std::vector<streams::Stage> stages = {
      {{0}, {}, {}, false}, {{1}, {}, {}, false}, {{1}, {0}, {}, false}, {{0}, {1}, {}, false}};
  std::vector<streams::Stage> model = stages;
  model[0].to = {2};
  model[1].to = {3};
  using streams::Do;
  const Told crossed{model,
                     {{{Do::forward, 0, 0},
                       {Do::send_output, 0, 0, 1, 2},
                       {Do::take_output, 3, 0, 1, 1},
                       {Do::forward, 3, 0}},
                      {{Do::forward, 1, 0},
                       {Do::send_output, 1, 0, 0, 3},
                       {Do::take_output, 2, 0, 0, 0},
                       {Do::forward, 2, 0}}}};
  EXPECT_NE(streams::run(crossed, Streams::blocking).hangs, "");
  EXPECT_NE(streams::run(crossed, Streams::rank).hangs, "");
  EXPECT_NE(streams::run(crossed, Streams::pair).hangs, "");
  const streams::Outcome apart = streams::run(crossed, Streams::direction);
  EXPECT_EQ(apart.hangs, "");
  EXPECT_EQ(apart.sums, streams::expected(model, 1));
}

}  // namespace
}  // namespace ostinato
