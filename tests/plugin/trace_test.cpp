#include "plugin/executor/trace.h"

#include <gtest/gtest.h>

#include "plugin/executor/error.h"
#include "plugin/program_text.h"

namespace ostinato {
namespace {

class TraceTest : public ::testing::Test {
 protected:
  void ran(int index, Action action, int stage, int micro_batch) {
    trace.ran(index, action, stage, micro_batch, Trace::Clock::now(), Trace::Clock::now());
  }

  std::string failure(const std::function<void()>& act) {
    try {
      act();
    } catch (const ExecutionError& error) {
      return error.what();
    }
    return "";
  }

  std::vector<Instruction> planned = parse_program_text("1RECV_F0,1F0,1RECV_F1,1F1,1B0,1B1\n")[0];
  Trace trace{planned, 1};
};

TEST_F(TraceTest, AcceptsThePlanAndReceivesThatComeLate) {
  trace.begin();
  ran(0, Action::receive_forward, 1, 0);
  ran(1, Action::forward, 1, 0);
  ran(3, Action::forward, 1, 1);
  ran(2, Action::receive_forward, 1, 1);
  ran(4, Action::backward, 1, 0);
  ran(5, Action::backward, 1, 1);
  EXPECT_NO_THROW(trace.finish());
  EXPECT_EQ(trace.records().size(), planned.size());
}

TEST_F(TraceTest, AnotherInstructionIsNamed) {
  trace.begin();
  EXPECT_EQ(failure([&] { ran(1, Action::forward, 1, 1); }),
            "rank 1 ran 1F1 where the plan has 1F0, instruction 1");
}

TEST_F(TraceTest, TwiceOrOutOfTurn) {
  trace.begin();
  ran(3, Action::forward, 1, 1);
  EXPECT_NE(failure([&] { ran(3, Action::forward, 1, 1); }).find("which ran already"), std::string::npos);
  EXPECT_NE(failure([&] { ran(1, Action::forward, 1, 0); }).find("out of turn"), std::string::npos);
}

TEST_F(TraceTest, WhatDidNotRunIsNamed) {
  trace.begin();
  ran(0, Action::receive_forward, 1, 0);
  EXPECT_EQ(failure([&] { trace.finish(); }), "rank 1 ended the step without 1F0, instruction 1 of the plan");
}

}  // namespace
}  // namespace ostinato
