// SPDX-License-Identifier: Apache-2.0
// Choices: reading and writing them, taking modes, bounds over modes, the search among them, and the checker.

#include "search/plan/modes.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "search/bounds/bounds.h"
#include "search/bounds/mode_bounds.h"
#include "search/checker/modes.h"
#include "search/files/error.h"
#include "search/mode_search.h"
#include "search/placement/placement_toml.h"
#include "search/plan/orders.h"
#include "search/plan/plan_json.h"
#include "tests/search/checked.h"
#include "tests/search/random_plan.h"
#include "tests/search/small.h"
#include "tests/support/refusal.h"
#include "tests/support/source_dir.h"

namespace ostinato {
namespace {

using test::add;
using test::expect_holds;
using test::on_devices;
using test::Random;

const std::string kHead = R"(format = "ostinato-placement/1"
name = "p"
time_unit = "ns"
memory_unit = "B"
[[devices]]
memory = 9
[[blocks]]
name = "F"
kind = "forward"
devices = [0]
time = 1
memory = 4
[[blocks]]
name = "I"
kind = "backward_input"
devices = [0]
time = 1
after = ["F"]
[[blocks]]
name = "W"
kind = "backward_weight"
devices = [0]
time = 1
memory = -4
after = ["I"]
)";  // 25 lines

const std::string kChoice = R"([[choices]]
name = "c"
modes = [
  { name = "split" },
  { name = "whole", blocks = [
    { block = "I", kind = "backward", time = 2, memory = -4 },
    { block = "W", absent = true } ] },
  { name = "recompute", blocks = [
    { block = "F", memory = 1 },
    { block = "W", memory = -1, time = 2, workspace = 3 } ] },
]
)";

Placement parse(const std::string& text) { return parse_placement(text, "p.toml").placement; }

std::string refusal(const std::string& choices) {
  return test::refusal_by([&] { parse(kHead + choices); });
}

/// The modes of one choice, between the brackets.
std::string modes(const std::string& text) { return "[[choices]]\nname = \"c\"\nmodes = [" + text + "]\n"; }

TEST(Choices, AreReadInTheUnitsOfTheFile) {
  std::string text = kHead + kChoice;
  text.replace(text.find("\"ns\""), 4, "\"us\"");
  text.replace(text.find("\"B\""), 3, "\"KiB\"");
  const Placement p = parse(text);
  ASSERT_EQ(p.choices.size(), 1u);
  ASSERT_EQ(p.choices[0].modes.size(), 3u);
  EXPECT_TRUE(p.choices[0].modes[0].changes.empty());
  const Mode& whole = p.choices[0].modes[1];
  EXPECT_EQ(whole.name, "whole");
  EXPECT_EQ(whole.changes[0].block, 1);
  EXPECT_EQ(whole.changes[0].kind, Kind::backward);
  EXPECT_EQ(whole.changes[0].time, 2000);
  EXPECT_EQ(whole.changes[0].memory, -4096);
  EXPECT_FALSE(whole.changes[0].workspace);
  EXPECT_TRUE(whole.changes[1].absent);
}

TEST(Choices, AreWrittenAsTheyWereRead) {
  const Placement p = parse(kHead + kChoice);
  const std::string text = format_placement(p);
  EXPECT_EQ(format_placement(parse(text)), text);
  EXPECT_EQ(with_modes(parse(text), Assignment{2}).blocks[2].workspace, 3);
}

TEST(Choices, AreRefusedWithLineAndReason) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"choices = 3\n", "found 'choices'"},  // a key of the last [[blocks]]
      {modes(""), "p.toml:26: choice 'c' has no modes"},
      {modes("{ name = \"a\", blocks = [{ block = \"F\", time = 2 }] }"), "must have no 'blocks'"},
      {modes("{ name = \"a\" }, { name = \"b\" }"), "changes nothing"},
      {modes("{ name = \"a\" }, { name = \"a\", blocks = [{ block = \"F\", time = 2 }] }"), "duplicate mode"},
      {modes("{ name = \"a\" }, { name = \"b\", blocks = [{ block = \"G\", time = 2 }] }"), "unknown block"},
      {modes("{ name = \"a\" }, { name = \"b\", blocks = [{ block = \"F\" }] }"), "nothing changes for"},
      {modes("{ name = \"a\" }, { name = \"b\", blocks = [{ block = \"F\", time = 1, absent = true }] }"),
       "is absent: it must have no other key"},
      {modes("{ name = \"a\" }, { name = \"b\", blocks = [{ block = \"F\", time = -1 }] }"), "out of range"},
      {modes("{ name = \"a\" }, { name = \"b\", blocks = [{ block = \"F\", tiem = 1 }] }"),
       "did you mean 'time'"},
      {modes("{ name = \"a\" }, { name = \"b\", blocks = [{ block = \"F\", kind = \"forwrd\" }] }"),
       "did you mean 'forward'"},
      {modes("{ name = \"a\" }, { name = \"b\", blocks = [{ block = \"F\", time = 1 }, { block = \"F\", time "
             "= 2 }] }"),
       "listed twice"},
      {modes("{ name = \"a\" }, { name = \"b\", blocks = [{ block = \"F\", absent = true }, { block = \"I\", "
             "absent "
             "= true }, { block = \"W\", absent = true }] }"),
       "together leave out every block"},
      {modes("{ name = \"a\" }, { name = \"b\", blocks = [{ block = \"F\", time = 9223372036854775807 }] }"),
       "exceed 2^63 nanoseconds"},
      {kChoice + kChoice, "duplicate choice name 'c'"},
      {kChoice +
           "[[choices]]\nname = \"d\"\nmodes = [{ name = \"a\" }, { name = \"b\", blocks = [{ block = \"W\", "
           "time = 2 }] }]\n",
       "both change block 'W'"},
  };
  for (std::size_t i = 1; i < cases.size(); ++i)
    EXPECT_NE(refusal(cases[i].first).find(cases[i].second), std::string::npos) << refusal(cases[i].first);
  EXPECT_NE(refusal(cases[0].first).find("unknown key 'choices'"), std::string::npos);
}

TEST(WithModes, ChangesBlocksAndLeavesAbsentOnesOut) {
  const Placement p = parse(kHead + kChoice);
  const Placement same = with_modes(p, Assignment{0});
  EXPECT_TRUE(same.choices.empty());
  EXPECT_EQ(same.blocks.size(), 3u);
  const Placement whole = with_modes(p, {{"c", "whole"}});
  ASSERT_EQ(whole.blocks.size(), 2u);
  EXPECT_EQ(whole.blocks[1].kind, Kind::backward);
  EXPECT_EQ(whole.blocks[1].memory, -4);
  EXPECT_EQ(whole.blocks[1].after[0].block, 0);
  EXPECT_EQ(places_with_modes(p, {1}), (std::vector<int>{0, 1, -1}));
}

TEST(WithModes, NobodyWaitsForAnAbsentBlock) {
  Placement p = on_devices(1);
  const int a = add(p, "a", {0}, 1);
  const int b = add(p, "b", {0}, 1, {.after = {a}});
  add(p, "c", {0}, 1, {.after = {a, b}});
  p.choices = {{"x", {{"with", {}}, {"without", {{.block = b, .absent = true}}}}}};
  const Placement without = with_modes(p, Assignment{1});
  ASSERT_EQ(without.blocks.size(), 2u);
  EXPECT_EQ(without.blocks[1].name, "c");
  ASSERT_EQ(without.blocks[1].after.size(), 1u);
  EXPECT_EQ(without.blocks[1].after[0].block, 0);
}

TEST(WithModes, RefusesUnknownNames) {
  const Placement p = parse(kHead + kChoice);
  EXPECT_THROW(with_modes(p, {{"d", "whole"}}), InputError);
  EXPECT_THROW(with_modes(p, {{"c", "hole"}}), InputError);
  EXPECT_THROW(with_modes(p, {{"c", "whole"}, {"c", "split"}}), InputError);
  EXPECT_EQ(taken_modes(p, assignment_of(p, {{"c", "whole"}})), (std::vector<TakenMode>{{"c", "whole"}}));
}

/// The plan as `ostinato search --choose` writes it and `verify` reads it.
Plan through_a_file(const Plan& plan, const Placement& written) {
  const std::string text = format_plan(plan, with_modes(written, plan.modes->taken));
  const Plan read = parse_plan(text, "plan.json", written, "");
  EXPECT_EQ(format_plan(read, with_modes(written, read.modes->taken)), text);
  return read;
}

TEST(ModesInAPlan, AreReadBack) {
  const Placement p = parse(kHead + kChoice);
  Plan plan = search(with_modes(p, Assignment{1}), {.micro_batches = 2});
  plan.modes = {{{"c", "whole"}}, 3};
  plan.capacity = {8, 5};
  const Plan read = through_a_file(plan, p);
  EXPECT_EQ(read.modes->taken, plan.modes->taken);
  EXPECT_EQ(read.modes->lower_bound, 3);
  EXPECT_EQ(read.capacity->memory, 8);
  EXPECT_EQ(read.schedule, plan.schedule);
  expect_holds(read, p);
}

TEST(ModesInAPlan, AStepOfAnAbsentBlockIsRefused) {
  const Placement p = parse(kHead + kChoice);
  std::string text = format_plan(search(with_modes(p, Assignment{0}), {}), with_modes(p, Assignment{0}));
  const std::string modes =
      R"("modes": { "taken": [{ "choice": "c", "mode": "whole" }], "lower_bound": 0 }, )";
  text.insert(text.find("\"schedule\""), modes);
  try {
    parse_plan(text, "plan.json", p, "");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("block 'W' is absent"), std::string::npos) << error.what();
  }
}

TEST(ModesInAPlan, FalseClaimsAreFound) {
  const Placement p = parse(kHead + kChoice);
  const Plan plan = search_modes(p, {.micro_batches = 3});
  expect_holds(plan, p);
  const auto fails = [&](auto change) {
    Plan wrong = plan;
    change(wrong);
    return !check_plan(wrong, p).ok();
  };
  EXPECT_TRUE(fails([](Plan& w) { w.modes->lower_bound = w.makespan + 1; }));
  EXPECT_TRUE(fails([](Plan& w) { w.capacity = {3, 0}; }));
  EXPECT_TRUE(fails([](Plan& w) { w.capacity = {9, w.makespan + 1}; }));
  EXPECT_FALSE(fails([](Plan& w) { w.capacity = {9, w.modes->lower_bound}; }));
}

TEST(SearchModes, TakesTheWholeBackwardWhereItIsQuicker) {
  Placement p = parse(kHead + kChoice);
  p.choices[0].modes[1].changes[0].time = 1;
  const Plan plan = search_modes(p, {.micro_batches = 4});
  EXPECT_EQ(plan.modes->taken, (std::vector<TakenMode>{{"c", "whole"}}));
  EXPECT_EQ(plan.makespan, 8);
  EXPECT_EQ(plan.modes->lower_bound, 8) << "proved for all modes";
  expect_holds(through_a_file(plan, p), p);
}

TEST(SearchModes, KeepsWhatIsWrittenWhereNothingIsBetter) {
  const Placement p = parse(kHead + kChoice);
  const Plan plan = search_modes(p, {.micro_batches = 2});
  EXPECT_TRUE(plan.modes->taken.empty());
  EXPECT_EQ(plan.makespan, search(with_modes(p, Assignment{0}), {.micro_batches = 2}).makespan);
}

TEST(SearchModes, FindsTheModesThatFit) {
  Placement p = parse(kHead + kChoice);
  p.devices[0].memory = 3;  // too little for F as it is written; recomputing it holds 1, and needs 3 beside
  p.choices[0].modes[2].changes[1].workspace = 2;
  const Plan plan = search_modes(p, {.micro_batches = 2});
  EXPECT_EQ(plan.modes->taken, (std::vector<TakenMode>{{"c", "recompute"}}));
  expect_holds(plan, p);
  p.devices[0].memory = 0;
  EXPECT_THROW(search_modes(p, {.micro_batches = 2}), InfeasibleError);
}

/// A pipeline with a choice for some stages: split, whole, recompute.
Placement random_choices(Random& random) {
  const int stages = static_cast<int>(random.between(1, 3));
  Placement p = on_devices(stages, random.between(4, 9));
  for (int s = 0; s < stages; ++s)
    add(p, fmt::format("F{}", s), {s}, random.between(1, 3),
        {.memory = 2, .after = s == 0 ? std::vector<int>{} : std::vector<int>{s - 1}});
  int gradient = -1;
  for (int s = stages - 1; s >= 0; --s) {
    std::vector<int> after = {s};
    if (gradient >= 0) after.push_back(gradient);
    gradient = add(p, fmt::format("I{}", s), {s}, random.between(1, 3), {.after = after});
    const int weight =
        add(p, fmt::format("W{}", s), {s}, random.between(1, 3), {.memory = -2, .after = {gradient}});
    const Nanoseconds whole = p.blocks[gradient].time + p.blocks[weight].time - random.between(0, 1);
    if (!random.chance(80)) continue;
    Choice choice{fmt::format("s{}", s), {{"split", {}}}};
    choice.modes.push_back({"whole",
                            {{.block = gradient, .kind = Kind::backward, .time = whole, .memory = -2},
                             {.block = weight, .absent = true}}});
    if (random.chance(50))
      choice.modes.push_back({"recompute",
                              {{.block = s, .memory = 1},
                               {.block = weight,
                                .time = p.blocks[weight].time + p.blocks[s].time,
                                .memory = -1,
                                .workspace = 1}}});
    p.choices.push_back(choice);
  }
  return p;
}

/// Calls visit(assignment) for every set of modes.
template <typename Visit>
void for_all_modes(const Placement& p, Visit visit) {
  Assignment modes(p.choices.size(), 0);
  for (std::size_t c = 0; c < modes.size() || modes.empty();) {
    visit(modes);
    if (modes.empty()) return;
    for (c = 0; c < modes.size(); ++c) {
      if (++modes[c] < static_cast<int>(p.choices[c].modes.size())) break;
      modes[c] = 0;
    }
  }
}

TEST(BoundOverModes, HoldsForEverySetOfModesAndTheCheckerAgrees) {
  Random random(7);
  for (int i = 0; i < 60; ++i) {
    const Placement p = random_choices(random);
    const int n = static_cast<int>(random.between(1, 4));
    for (const Objective objective : {Objective::makespan, Objective::span, Objective::latency}) {
      const ModesBound bound = bound_over_modes(p, objective, n);
      EXPECT_EQ(bound.guided.size(), p.choices.size());
      for_all_modes(p, [&](const Assignment& modes) {
        const Placement chosen = with_modes(p, modes);
        try {
          const Plan plan = search(chosen, {.micro_batches = n, .objective = objective, .effort = 5});
          EXPECT_LE(bound.value, objective_value(objective, chosen, plan.schedule));
        } catch (const InfeasibleError&) {
        }
      });
      EXPECT_GE(checker::bound_of_any_modes(p, objective, n, bound.value).value, bound.value) << i;
    }
  }
}

TEST(SearchModes, FindsTheBestOfAllSetsOfModes) {
  Random random(11);
  int better = 0;
  for (int i = 0; i < 40; ++i) {
    const Placement p = random_choices(random);
    if (p.choices.empty()) continue;
    const int n = static_cast<int>(random.between(1, 4));
    Nanoseconds best = std::numeric_limits<Nanoseconds>::max(), written = best;
    for_all_modes(p, [&](const Assignment& modes) {
      try {
        const Nanoseconds makespan = search(with_modes(p, modes), {.micro_batches = n}).makespan;
        best = std::min(best, makespan);
        if (std::count(modes.begin(), modes.end(), 0) == static_cast<int>(modes.size())) written = makespan;
      } catch (const InfeasibleError&) {
      }
    });
    const Plan plan = search_modes(p, {.micro_batches = n});
    expect_holds(through_a_file(plan, p), p);
    EXPECT_EQ(plan.makespan, best) << i;
    better += best < written;
  }
  EXPECT_GT(better, 10) << "the choices matter";
}

TEST(SearchModes, GivesTheSameBytesAtAnyNumberOfThreads) {
  Random random(3);
  for (int i = 0; i < 6; ++i) {
    const Placement p = random_choices(random);
    const auto bytes = [&](int threads) {
      const Plan plan = search_modes(p, {.micro_batches = 5, .time_limit_seconds = 0, .threads = threads});
      return format_plan(plan, with_modes(p, plan.modes->taken));
    };
    EXPECT_EQ(bytes(1), bytes(2));
    EXPECT_EQ(bytes(1), bytes(3));
  }
}

TEST(SearchModes, MakesOtherObjectivesSmallToo) {
  const Placement p =
      read_placement((ostinato::test::source_dir() / "configs/choices-4.toml").string()).placement;
  for (const Objective objective : {Objective::span, Objective::latency}) {
    const Plan plan = search_modes(p, {.micro_batches = 4, .objective = objective, .effort = 10});
    EXPECT_EQ(plan.objective, objective);
    expect_holds(plan, p);
  }
}

}  // namespace
}  // namespace ostinato
