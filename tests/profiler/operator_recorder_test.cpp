// SPDX-License-Identifier: Apache-2.0
#include "profiler/operators/operator_recorder.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <thread>

#include "profiler/memory/counting_allocator.h"
#include "profiler/operators/operator_rows.h"
#include "tests/profiler/support/count_news.h"

namespace ostinato {
namespace {

std::vector<OperatorEvent> named(const std::vector<OperatorEvent>& events, const std::string& name) {
  std::vector<OperatorEvent> found;
  std::copy_if(events.begin(), events.end(), std::back_inserter(found),
               [&](const OperatorEvent& event) { return event.name() == name; });
  return found;
}

at::Tensor leaf(at::IntArrayRef sizes) { return torch::autograd::make_variable(at::randn(sizes), true); }

TEST(OperatorRecorder, SeesEveryCallWithItsPass) {
  OperatorRecorder recorder;
  const at::Tensor a = at::ones({4, 4});
  recorder.start();
  at::mm(a, a);
  recorder.begin_pass(3, "forward");
  at::mm(a, a);
  at::mm(a, a);
  recorder.end_pass();
  recorder.stop();
  at::mm(a, a);
  const auto found = named(recorder.events(), "aten::mm");
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].pass, -1);
  EXPECT_EQ(found[1].pass, 0);
  EXPECT_EQ(found[2].pass, 0);
  ASSERT_EQ(recorder.passes().size(), 1u);
  EXPECT_EQ(recorder.passes()[0].layer, 3);
  EXPECT_EQ(recorder.dropped(), 0);
  EXPECT_EQ(recorder.unfinished(), 0);
}

TEST(OperatorRecorder, LongNamesStayApart) {
  const std::string name(80, 'n');
  OperatorRecorder recorder;
  recorder.start();
  for (const char* end : {"A", "B", "A"}) {
    const std::string whole = name + end;
    RECORD_FUNCTION(whole.c_str(), {});
  }
  recorder.stop();
  const auto events = recorder.events();
  EXPECT_EQ(named(events, name + "A").size(), 2u);
  EXPECT_EQ(named(events, name + "B").size(), 1u);
  EXPECT_EQ(recorder.dropped(), 0);
}

TEST(OperatorRecorder, SelfTimeLeavesOutWhatIsCalled) {
  OperatorRecorder recorder;
  const at::Tensor a = at::ones({64, 64});
  recorder.start();
  at::linear(a, a);
  recorder.stop();
  const auto events = recorder.events();
  const auto linear = named(events, "aten::linear");
  ASSERT_EQ(linear.size(), 1u);
  Nanoseconds all_self = 0;
  for (const OperatorEvent& event : events) {
    EXPECT_GE(event.self_time(), 0);
    all_self += event.self_time();
  }
  EXPECT_GT(linear[0].children, 0);
  EXPECT_EQ(all_self, linear[0].end - linear[0].start);  // self times of a tree sum up to its root
}

TEST(OperatorRecorder, CountsBytesWhereTheyAreAllocated) {
  CountingAllocator::install();
  OperatorRecorder recorder;
  const at::Tensor a = at::ones({8, 8});
  recorder.start();
  at::Tensor sum = at::add(a, a);
  recorder.stop();
  CountingAllocator::remove();
  Bytes total = 0;
  for (const OperatorEvent& event : recorder.events()) total += event.self_allocated();
  EXPECT_EQ(total, 8 * 8 * 4);
}

TEST(OperatorRecorder, PairsBackwardNodesWithTheirForward) {
  OperatorRecorder recorder;
  const at::Tensor a = leaf({4, 4});
  recorder.start();
  at::Tensor out = at::tanh(at::mm(a, a));
  torch::autograd::backward({out}, {at::ones_like(out)});
  recorder.stop();
  const auto events = recorder.events();
  const auto forwards = forward_events(events);
  int paired = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const std::string name = events[i].name();
    if (name != "MmBackward0" && name != "TanhBackward0") continue;
    ASSERT_GE(forwards[i], 0) << name;
    EXPECT_STREQ(events[forwards[i]].name(), name == "MmBackward0" ? "aten::mm" : "aten::tanh");
    ++paired;
  }
  EXPECT_EQ(paired, 2);
}

TEST(OperatorRecorder, FindsBackwardsOfAnotherLayer) {
  OperatorRecorder recorder;
  const at::Tensor a = leaf({4, 4});
  recorder.start();
  recorder.begin_pass(0, "forward");
  at::Tensor out = at::mm(a, a);
  recorder.begin_pass(1, "backward");
  torch::autograd::backward({out}, {at::ones_like(out)});
  recorder.end_pass();
  recorder.stop();
  EXPECT_GT(out_of_range(recorder), 0);
}

/// Five products on this thread, then one on another.
std::int64_t record_products(OperatorRecorder& recorder) {
  const at::Tensor a = at::ones({4, 4});
  recorder.start();
  for (int i = 0; i < 5; ++i) at::mm(a, a);
  std::thread([&] { at::mm(a, a); }).join();
  recorder.stop();
  return static_cast<std::int64_t>(recorder.events().size());
}

TEST(OperatorRecorder, CountsWhatDoesNotFit) {
  OperatorRecorder large({.events_per_thread = 1000, .threads = 2});
  const std::int64_t all = record_products(large);
  EXPECT_GE(all, 6);
  EXPECT_EQ(large.dropped(), 0);
  OperatorRecorder small({.events_per_thread = 2, .threads = 1});  // the other thread finds no buffer
  EXPECT_EQ(record_products(small), 2);
  EXPECT_EQ(small.dropped(), all - 2);
}

TEST(OperatorRecorder, GivesEachThreadABuffer) {
  OperatorRecorder recorder({.events_per_thread = 64, .threads = 2});
  const at::Tensor a = at::ones({4, 4});
  recorder.start();
  at::mm(a, a);
  std::thread([&] { at::mm(a, a); }).join();
  recorder.stop();
  const auto found = named(recorder.events(), "aten::mm");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_NE(found[0].thread, found[1].thread);
  EXPECT_EQ(recorder.dropped(), 0);
}

TEST(OperatorRecorder, SurvivesAnOperatorThatThrows) {
  OperatorRecorder recorder;
  recorder.start();
  EXPECT_ANY_THROW(at::mm(at::ones({2, 3}), at::ones({2, 3})));
  at::mm(at::ones({2, 2}), at::ones({2, 2}));
  recorder.stop();
  EXPECT_EQ(recorder.unfinished(), 0);
  EXPECT_EQ(named(recorder.events(), "aten::mm").size(), 2u);
}

TEST(OperatorRecorder, ForgetsWhenItIsCleared) {
  OperatorRecorder recorder({.events_per_thread = 2, .threads = 1});
  record_products(recorder);
  EXPECT_GT(recorder.dropped(), 0);
  recorder.clear();
  EXPECT_TRUE(recorder.events().empty());
  EXPECT_EQ(recorder.dropped(), 0);
  EXPECT_EQ(record_products(recorder), 2);
}

TEST(OperatorRecorder, RunsOneAtATime) {
  OperatorRecorder first, second;
  first.start();
  EXPECT_THROW(second.start(), std::logic_error);
  first.stop();
  second.start();
  at::ones({1});
  second.stop();
  EXPECT_FALSE(second.events().empty());
  EXPECT_TRUE(first.events().empty());
}

template <typename Call>
long news_of(const Call& call) {
  test::news = 0;
  test::count_news = true;
  call();
  test::count_news = false;
  return test::news;
}

TEST(OperatorRecorder, AllocatesNothingOnTheHotPath) {
  const at::Tensor a = at::ones({4, 4});
  at::Tensor out = at::empty({4, 4});
  EXPECT_GT(news_of([] { at::empty({4}); }), 0);  // the count sees torch
  const auto call = [&] { at::add_out(out, a, a); };
  news_of(call);
  const long without = news_of(call);
  OperatorRecorder recorder;
  recorder.start();
  news_of(call);  // torch makes its list of callbacks, and the thread claims a buffer
  const long with = news_of(call);
  recorder.stop();
  EXPECT_EQ(with, without);
  EXPECT_EQ(named(recorder.events(), "aten::add").size(), 2u);
}

}  // namespace
}  // namespace ostinato
