// SPDX-License-Identifier: Apache-2.0
// Plans for micro-batches of sizes of their own: never worse than the usual schedules, the same again, what
// the checker refuses of them, and their files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "search/checker/checker.h"
#include "search/checker/unequal.h"
#include "search/files/error.h"
#include "search/placement/lanes.h"
#include "search/plan/one_batch.h"
#include "search/plan/plan_json.h"
#include "search/plan/sizes_toml.h"
#include "search/simulate/simulate.h"
#include "search/unequal/bounds.h"
#include "search/unequal/enter.h"
#include "search/unequal/unequal.h"
#include "tests/search/unequal/unequal_cases.h"
#include "tests/support/refusal.h"

namespace ostinato {
namespace {

test::UnequalCase chain(int stages, int n, Bytes room, unsigned seed, bool split = false, int devices = 0) {
  test::Dice random(seed);
  test::UnequalCase one{test::pipeline_of(stages, devices == 0 ? stages : devices, split, 16), {}};
  for (Device& device : one.placement.devices) device.memory = room;
  for (int i = 0; i < n; ++i) one.sizes.push_back(scaled(one.placement, 100'000 + random.below(400'000), 16));
  return one;
}

Plan held(const test::UnequalCase& one, const UnequalOptions& options = {}) {
  Plan plan = search_unequal(one.placement, one.sizes, options);
  for (const std::string& failure : check_plan(plan, one.placement).failures) ADD_FAILURE() << failure;
  return plan;
}

std::string last_stage(const Placement& placement) {
  std::string last;
  for (const Block& block : placement.blocks)
    if (block.kind == Kind::forward) last = block.stage;
  return last;
}

/// The first failure that the checker finds, or "".
std::string refusal(const Plan& plan, const Placement& placement) {
  const CheckResult result = check_plan(plan, placement);
  return result.ok() ? "" : result.failures.front();
}

TEST(Unequal, IsNeverWorseThanAUsualScheduleThatFits) {
  for (const bool split : {false, true}) {
    for (unsigned seed = 0; seed < 6; ++seed) {
      const test::UnequalCase one = chain(3, 6, 1'000'000, seed, split);
      const Plan plan = held(one, {.work = 1});
      int fitting = 0;
      for (const UsualSchedule& usual : usual_schedules(one.placement, one.sizes)) {
        if (!usual.fits || usual.name != "1f1b") continue;
        ++fitting;
        EXPECT_LE(plan.makespan, usual.makespan) << usual.name;
      }
      EXPECT_LE(fitting, 1);
      EXPECT_LE(held(one).makespan, plan.makespan) << "more work made it worse";
    }
  }
}

TEST(Unequal, BeginsWithSeveralChunksADevice) {
  const test::UnequalCase one = chain(4, 5, 5'000'000, 3, false, 2);
  const Plan plan = held(one);
  EXPECT_GT(plan.lower_bound.makespan, 0);
  EXPECT_EQ(plan.sizes, one.sizes);
}

TEST(Unequal, TheSameInputGivesTheSameBytes) {
  const test::UnequalCase one = chain(3, 8, 1'200'000, 4);
  const Plan first = held(one), again = held(one), other = held(one, {.seed = 7});
  EXPECT_EQ(format_plan(first, one.placement), format_plan(again, one.placement));
  EXPECT_EQ(first.lower_bound.makespan, other.lower_bound.makespan);
}

TEST(Unequal, KeepsTheOrderOfGradientsAndLossesWhereAsked) {
  int dearer = 0;
  for (const bool split : {false, true}) {
    for (unsigned seed = 0; seed < 6; ++seed) {
      const test::UnequalCase one = chain(3, 8, 1'600'000, seed, split);
      const Plan plan = held(one, {.keep_order = true}), free = held(one);
      const std::string last = last_stage(one.placement);
      std::vector<int> next(one.placement.blocks.size(), 0);
      for (const ScheduledBlock& step : plan.schedule) {
        const auto b = static_cast<std::size_t>(step.block);
        const Block& block = one.placement.blocks[b];
        const bool adds = block.kind != Kind::forward || block.stage == last;
        if (adds) {
          EXPECT_EQ(next[b]++, step.micro_batch) << block.name;
        }
      }
      EXPECT_EQ(plan.lower_bound.makespan, free.lower_bound.makespan);
      dearer += plan.makespan > free.makespan ? 1 : 0;
      for (const UsualSchedule& usual : usual_schedules(one.placement, one.sizes)) {
        if (!usual.fits || usual.name != "1f1b") continue;
        EXPECT_LE(plan.makespan, usual.makespan);
      }
    }
  }
  EXPECT_GT(dearer, 0) << "the order costs nothing: is it kept?";
}

TEST(Unequal, StopsWithTheBestSoFar) {
  const test::UnequalCase one = chain(4, 16, 1'200'000, 5);
  const std::atomic<bool> stop = true;
  const Plan plan = held(one, {.work = 1'000'000'000, .stop = &stop});
  EXPECT_TRUE(plan.search.cut_by_limit);
}

TEST(Unequal, MicroBatchesThatAreAlikeGiveTheKnownOptimum) {
  test::UnequalCase one = chain(4, 0, 4, 0, true);  // room for 4, F = I = W = 1: docs/search.md
  for (Block& block : one.placement.blocks) {
    block.time = 1;
    block.memory = block.memory > 0 ? 1 : block.memory < 0 ? -1 : 0;
  }
  one.sizes.assign(8, as_written(one.placement));
  const Plan plan = held(one, {.work = 20'000'000});
  EXPECT_EQ(plan.makespan, 27);
}

TEST(Unequal, SaysWhatCannotFit) {
  const test::UnequalCase one = chain(2, 3, 100'000, 1);
  EXPECT_THROW(search_unequal(one.placement, one.sizes, {}), InfeasibleError);
}

TEST(Unequal, SaysWhereTheMicroBatchesKeepTooMuch) {
  test::UnequalCase one = chain(2, 3, 100'000, 1);
  Bytes kept = 0;
  for (MicroBatch& size : one.sizes) kept += size.memory[0] = 30'000;
  for (Block& block : one.placement.blocks) block.memory = 0;
  for (MicroBatch& size : one.sizes) std::fill(size.memory.begin() + 1, size.memory.end(), 0);
  one.placement.devices[0].memory = kept;
  held(one);
  one.placement.devices[0].memory = kept - 1;
  EXPECT_THAT([&] { search_unequal(one.placement, one.sizes, {}); },
              testing::ThrowsMessage<InfeasibleError>(testing::HasSubstr("keep")));
}

/// As a search of equal ones says, also where no block runs there.
TEST(Unequal, SaysWhereStaticMemoryAloneIsTooMuch) {
  test::UnequalCase one = chain(2, 3, kUnlimited, 1, false, 3);
  one.placement.devices[2].memory = 4;
  one.placement.devices[2].static_memory = 4;
  held(one);
  one.placement.devices[2].static_memory = 5;
  EXPECT_THAT(
      [&] { search_unequal(one.placement, one.sizes, {}); },
      testing::ThrowsMessage<InfeasibleError>("device 2 (d2): static memory is larger than its memory"));
}

TEST(UnequalBounds, BothWritingsProveTheSame) {
  test::Dice random(23);
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    const test::UnequalCase one = test::unequal_case(random, 60);
    const Nanoseconds search = unequal::least_makespan(unequal::Jobs(one.placement, one.sizes));
    const checker::Bound checked = checker::UnequalBounds(one.placement, one.sizes).makespan();
    EXPECT_LE(search, checked.value) << checked.why;
  }
}

/// Two stages, room for one micro-batch on the first: it idles while the second works.
TEST(UnequalBounds, MemoryOverTimeBindsWhereItIsTight) {
  test::UnequalCase one{test::pipeline_of(2, 2, false, 1), {}};
  one.placement.devices[0].memory = 1;
  const std::vector<Nanoseconds> times = {4, 6, 6, 8};  // F0, F1, I1, I0
  for (int i = 0; i < 2; ++i) {
    MicroBatch batch = as_written(one.placement);
    batch.times = times;
    one.sizes.push_back(batch);
  }
  const checker::Bound bound = checker::UnequalBounds(one.placement, one.sizes).makespan();
  EXPECT_EQ(bound.value, 48) << bound.why;  // U3: 24 twice, for room holds one
  EXPECT_EQ(held(one).makespan, 48);
}

TEST(UnequalChecker, RefusesWhatIsNotTrue) {
  const test::UnequalCase one = chain(2, 4, 1'000'000, 2);
  const Plan plan = held(one);
  Plan wrong = plan;
  wrong.lower_bound.makespan = plan.makespan + 1;
  EXPECT_THAT(refusal(wrong, one.placement), testing::HasSubstr("are proved"));
  wrong = plan;
  for (MicroBatch& batch : wrong.sizes) batch.times[0] *= 2;  // longer than it was planned
  EXPECT_NE(refusal(wrong, one.placement), "");
  wrong = plan;
  wrong.sizes.pop_back();
  EXPECT_THAT(refusal(wrong, one.placement), testing::HasSubstr("4 micro-batches, but 3 sizes"));
  wrong = plan;
  wrong.sizes[2].bytes.clear();
  EXPECT_THAT(refusal(wrong, one.placement), testing::HasSubstr("figures of bytes"));
  wrong = plan;
  for (MicroBatch& batch : wrong.sizes) batch.memory[0] *= 10;
  EXPECT_THAT(refusal(wrong, one.placement), testing::HasSubstr("exceeds its"));
  wrong = plan;
  wrong.schedule[0].micro_batch = 9;
  EXPECT_THAT(refusal(wrong, one.placement), testing::HasSubstr("micro-batch 9"));
  wrong = plan;
  wrong.lower_bound.period = 1;
  EXPECT_THAT(refusal(wrong, one.placement), testing::HasSubstr("steady state"));
  wrong = plan;
  wrong.optimal.makespan = true;
  wrong.lower_bound.makespan -= 1;
  EXPECT_THAT(refusal(wrong, one.placement), testing::HasSubstr("optimal.makespan"));
}

TEST(UnequalPlanFile, IsReadAsItWasWritten) {
  test::UnequalCase one = chain(3, 4, 1'000'000, 6);
  one.sizes[1].workspace[2] = 5;
  one.sizes[3].bytes[0] = 77;
  const Plan plan = held(one);
  const std::string text = format_plan(plan, one.placement);
  const Plan again = parse_plan(text, "plan.json", one.placement, "");
  EXPECT_EQ(again.sizes, plan.sizes);
  EXPECT_EQ(format_plan(again, one.placement), text);
  std::string fewer = text;
  fewer.replace(fewer.find("\"micro_batches\": 4"), 18, "\"micro_batches\": 5");
  EXPECT_THROW(parse_plan(fewer, "plan.json", one.placement, ""), InputError);
}

TEST(UnequalPlanFile, ReplaysAsPlanned) {
  const test::UnequalCase one = chain(3, 6, 1'000'000, 8);
  const Plan plan = held(one);
  const OneBatch all = as_one_batch(plan, one.placement);
  EXPECT_EQ(simulate(all.placement, 1, all.plan.schedule, {}).planned, plan.makespan);
  const OneBatch drawn = as_drawn(plan, one.placement);
  EXPECT_EQ(drawn.plan.schedule[0].micro_batch, plan.schedule[0].micro_batch);
  EXPECT_EQ(drawn.placement.blocks[drawn.plan.schedule[0].block].name,
            one.placement.blocks[plan.schedule[0].block].name);
}

std::string sizes_refusal(const std::string& text) {
  const Placement p = test::pipeline_of(2, 2, false, 1);
  return test::refusal_by([&] { parse_sizes(text, "step.toml", p); });
}

TEST(SizesFile, HasSizesAndTimes) {
  const Placement p = test::pipeline_of(2, 2, false, 10);
  const auto sizes = parse_sizes(R"(format = "ostinato-sizes/1"
size = 4
time_unit = "ns"
memory_unit = "B"
[[micro_batches]]
size = 6
[[micro_batches]]
times = { F0 = 9, I1 = 2.5 }
memory = { F1 = 3, I1 = -3 }
[[micro_batches]]
size = 2
times = { F0 = 1 }
)",
                                 "step.toml", p);
  ASSERT_EQ(sizes.size(), 3U);
  EXPECT_THAT(sizes[0].times, testing::ElementsAre(3, 3, 5, 5));  // 2 and 3 times 6/4, halves up
  EXPECT_THAT(sizes[0].memory, testing::ElementsAre(15, 15, -15, -15));
  EXPECT_THAT(sizes[1].times, testing::ElementsAre(9, 2, 3, 3));
  EXPECT_THAT(sizes[1].memory, testing::ElementsAre(10, 3, -3, -10));
  EXPECT_THAT(sizes[2].times, testing::ElementsAre(1, 1, 2, 2));
}

TEST(SizesFile, SaysWhatIsWrongAndWhere) {
  const std::string head = "format = \"ostinato-sizes/1\"\n";
  EXPECT_THAT(sizes_refusal("format = \"ostinato-plan/1\"\n"), testing::HasSubstr("step.toml:1"));
  EXPECT_THAT(sizes_refusal(head), testing::HasSubstr("no micro-batch"));
  EXPECT_THAT(sizes_refusal(head + "[[micro_batches]]\nsize = 3\n"),
              testing::HasSubstr("step.toml:3: 'size' needs"));
  EXPECT_THAT(sizes_refusal(head + "[[micro_batches]]\n"), testing::HasSubstr("'size' or 'times'"));
  EXPECT_THAT(sizes_refusal(head + "[[micro_batches]]\ntimes = { F00 = 3 }\n"),
              testing::HasSubstr("did you mean 'F0'?"));
  EXPECT_THAT(sizes_refusal(head + "[[micro_batches]]\ntimes = { F0 = -3 }\n"),
              testing::HasSubstr("step.toml:3"));
  EXPECT_THAT(sizes_refusal(head + "[[micro_batches]]\ntimes = 3\n"), testing::HasSubstr("times"));
  EXPECT_THAT(sizes_refusal(head + "[[micro_batches]]\nsice = 3\n"), testing::HasSubstr("did you mean"));
}

TEST(Sizes, GrowInProportionWithoutOverflow) {
  Placement p = test::pipeline_of(1, 1, false, 7);
  p.blocks[0].time = std::numeric_limits<Nanoseconds>::max() / 2;
  EXPECT_EQ(scaled(p, 3, 1).times[0], std::numeric_limits<Nanoseconds>::max());
  EXPECT_THROW(check_sizes(p, {scaled(p, 3, 1)}), InputError);
  EXPECT_EQ(scaled(p, 1, 2).memory[0], 4);
  EXPECT_EQ(scaled(p, 1, 2).memory[1], -4) << "as much is given back as was taken";
  EXPECT_EQ(scaled(p, 5, 5), as_written(p));
}

TEST(Sizes, HaveNoMemoryOnALane) {
  Placement p = test::on_devices(1);
  add_lane(p, 0, "network");
  test::add(p, "alone", {1}, 1);
  test::add(p, "both", {0, 1}, 1);
  MicroBatch one = as_written(p);
  one.memory = {0, 3};
  EXPECT_NO_THROW(check_sizes(p, {one})) << "device 0 counts it";
  MicroBatch holds = one, works = one;
  holds.memory[0] = -1;
  works.workspace[0] = 1;
  for (const MicroBatch& refused : {holds, works}) {
    try {
      check_sizes(p, {one, refused});
      ADD_FAILURE() << "memory of a lane";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("micro-batch 1: block 'alone' is on lane 'network', which "
                                                   "has no memory: count what it holds in a block of"));
    }
  }
}

TEST(Unequal, FindsTheOrderThatFitsWhereEagerOnesEndInFullMemory) {
  Placement p = test::on_devices(1, 2);
  const int first = test::add(p, "first", {0}, 1, {.memory = 1});
  const int large = test::add(p, "large", {0}, 1, {.workspace = 2});  // fits only before the first
  test::add(p, "last", {0}, 2, {.memory = -1, .after = {first, large}});
  EXPECT_EQ(held({p, {as_written(p), as_written(p)}}).makespan, 8);
}

TEST(Unequal, FindsTheOrderThatFitsBesideWhatEarlierOnesKeep) {
  Placement p = test::on_devices(1, 3);
  test::add(p, "keep", {0}, 3, {.memory = 1});
  const int take = test::add(p, "take", {0}, 4, {.memory = 1});
  test::add(p, "give", {0}, 2, {.memory = -1, .workspace = 1, .after = {take}});  // beside one that is kept
  EXPECT_EQ(held({p, {as_written(p), as_written(p)}}).makespan, 18);
}

TEST(Dispatch, SaysWhereMemoryLeadsNowhere) {
  // Two chunks a device: two micro-batches fill it with their first chunks, and no second one fits.
  test::UnequalCase one{test::pipeline_of(2, 1, false, 1), {}};
  one.placement.devices[0].memory = 2;
  one.sizes.assign(2, as_written(one.placement));
  const unequal::Jobs jobs(one.placement, one.sizes);
  std::int64_t work = 0;
  EXPECT_TRUE(unequal::dispatch(jobs, {0, 1}, {unequal::Rule::longest, 2}, work).empty());
  EXPECT_EQ(unequal::dispatch(jobs, {0, 1}, {unequal::Rule::oldest, 2}, work).size(), 8U);
  EXPECT_EQ(unequal::dispatch(jobs, {1, 0}, {unequal::Rule::deepest, 1}, work).size(), 8U);
  EXPECT_GT(work, 0);
}

}  // namespace
}  // namespace ostinato
