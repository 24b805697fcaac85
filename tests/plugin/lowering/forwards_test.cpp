// SPDX-License-Identifier: Apache-2.0
#include "plugin/lowering/forwards.h"

#include <gtest/gtest.h>

#include "plugin/lowering/deadlock.h"
#include "plugin/lowering/lower.h"
#include "plugin/lowering/program_text.h"
#include "tests/support/plans.h"

namespace ostinato {
namespace {

using testing::backward_first;
using testing::chain;
using testing::graph;

Program whole(const Placement& placement, int micro_batches) {
  return lower(backward_first(placement, micro_batches), placement);
}

TEST(Forwards, OfATrainingPlanAreItsForwardsInItsOrder) {
  const Program part = forwards(whole(chain({0, 1}), 3), 2, {0, 1});
  EXPECT_EQ(format_program(part, TextForm::transfers),
            "0F0,0SEND_F0,0F1,0SEND_F1\n"
            "1RECV_F0,1F0,1RECV_F1,1F1\n");
  EXPECT_EQ(part.micro_batches, 2);
  EXPECT_FALSE(part.stages[1].has_backward);
  EXPECT_TRUE(prove_deadlock_free(part).ok());
}

TEST(Forwards, OfOneDirectionAreNumberedAnew) {
  // Stages 0 -> 2 and 1 -> 3 are two models.
  const Placement p = graph({.device_of = {0, 1, 1, 0}, .edges = {{0, 2}, {1, 3}}});
  const Program part = forwards(whole(p, 2), 1, {1, 3});
  EXPECT_EQ(format_program(part, TextForm::transfers), "1RECV_F0,1F0\n0F0,0SEND_F0\n");
  EXPECT_EQ(part.stages[1].inputs, std::vector<int>{0});
  EXPECT_EQ(part.stages[0].outputs, std::vector<int>{1});
}

TEST(Forwards, EndWhereTheLastOfThemIsPlanned) {
  const Program program = whole(chain({0, 1}), 1);
  const Program part = forwards(program, 1, {0, 1});
  EXPECT_EQ(part.makespan, part.ranks[1].back().end);
  EXPECT_LT(part.makespan, program.makespan);
}

TEST(Forwards, RefuseWhatTheProgramDoesNotHave) {
  const Program program = whole(chain({0, 1}), 2);
  EXPECT_THROW(forwards(program, 3, {0, 1}), std::invalid_argument);
  EXPECT_THROW(forwards(program, 0, {0, 1}), std::invalid_argument);
  EXPECT_THROW(forwards(program, 1, {1, 0}), std::invalid_argument);
  EXPECT_THROW(forwards(program, 1, {0, 2}), std::invalid_argument);
  EXPECT_THROW(forwards(program, 1, {1}), std::invalid_argument);
}

}  // namespace
}  // namespace ostinato
