// SPDX-License-Identifier: Apache-2.0
#include "profiler/operators/operator_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace ostinato {
namespace {

const OperatorCost* find(const std::vector<OperatorCost>& rows, int layer, const std::string& phase,
                         const std::string& name) {
  for (const OperatorCost& row : rows) {
    if (row.layer == layer && row.phase == phase && row.name == name) return &row;
  }
  return nullptr;
}

TEST(OperatorRows, AreMediansOverThePassesOfALayer) {
  OperatorRecorder recorder;
  const at::Tensor a = at::ones({4, 4});
  recorder.start();
  for (const int calls : {1, 3, 2}) {
    recorder.begin_pass(5, "forward");
    for (int i = 0; i < calls; ++i) at::mm(a, a);
    recorder.end_pass();
  }
  at::mm(a, a);  // outside all passes
  recorder.stop();
  const auto rows = operator_rows(recorder);
  const OperatorCost* mm = find(rows, 5, "forward", "aten::mm");
  ASSERT_NE(mm, nullptr);
  EXPECT_EQ(mm->calls, 2);
  EXPECT_EQ(mm->self_time.repeats, 3);
  EXPECT_GT(mm->self_time.median, 0);
  EXPECT_EQ(find(rows, -1, "", "aten::mm"), nullptr);
}

TEST(OperatorRows, CountAPassWithoutTheOperatorAsZero) {
  OperatorRecorder recorder;
  const at::Tensor a = at::ones({4, 4});
  recorder.start();
  for (const bool runs : {true, false, false}) {
    recorder.begin_pass(0, "forward");
    if (runs) at::mm(a, a);
    recorder.end_pass();
  }
  recorder.stop();
  const auto rows = operator_rows(recorder);
  const OperatorCost* mm = find(rows, 0, "forward", "aten::mm");
  ASSERT_NE(mm, nullptr);
  EXPECT_EQ(mm->calls, 0);
  EXPECT_EQ(mm->self_time.low, 0);
  EXPECT_GT(mm->self_time.high, 0);
}

TEST(OperatorRows, KeepLayersAndDirectionsApart) {
  OperatorRecorder recorder;
  const at::Tensor a = at::ones({4, 4});
  recorder.start();
  recorder.begin_pass(0, "forward");
  at::mm(a, a);
  recorder.begin_pass(1, "forward");
  at::mm(a, a);
  recorder.begin_pass(1, "backward");
  at::mm(a, a);
  recorder.end_pass();
  recorder.stop();
  const auto rows = operator_rows(recorder);
  for (const auto& [layer, phase] : {std::pair{0, "forward"}, {1, "forward"}, {1, "backward"}}) {
    const OperatorCost* row = find(rows, layer, phase, "aten::mm");
    ASSERT_NE(row, nullptr);
    EXPECT_EQ(row->calls, 1);
  }
}

}  // namespace
}  // namespace ostinato
