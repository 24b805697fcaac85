// SPDX-License-Identifier: Apache-2.0
#include "plugin/lowering/program_text.h"

#include <gtest/gtest.h>

#include "plugin/lowering/lower.h"
#include "search/files/error.h"
#include "tests/support/plans.h"

namespace ostinato {
namespace {

TEST(ProgramText, ReadsBackWhatItWrites) {
  const Placement p = testing::chain({0, 1, 1, 0}, true);
  const Program program = lower(testing::backward_first(p, 3), p);
  const auto ranks = parse_program_text(format_program(program, TextForm::transfers));
  ASSERT_EQ(ranks.size(), program.ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    ASSERT_EQ(ranks[r].size(), program.ranks[r].size());
    for (std::size_t i = 0; i < ranks[r].size(); ++i) {
      EXPECT_EQ(to_string(ranks[r][i]), to_string(program.ranks[r][i]));
    }
  }
}

TEST(ProgramText, EmptyRankIsAnEmptyRow) {
  const auto ranks = parse_program_text("0F0\n\n0B0\n");
  ASSERT_EQ(ranks.size(), 3U);
  EXPECT_TRUE(ranks[1].empty());
}

TEST(ProgramText, RefusesWhatIsNoInstruction) {
  for (const char* text : {"F0", "0F", "0X0", "0F0x", "0SEND0", "0F-1", "0F0,,0F1", "99999999999F0"}) {
    EXPECT_THROW(parse_program_text(text), InputError) << text;
  }
  try {
    parse_program_text("0F0\n0F1,0Q1\n");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()).rfind("program:2: '0Q1' is no instruction", 0), 0U) << error.what();
  }
}

}  // namespace
}  // namespace ostinato
