// SPDX-License-Identifier: Apache-2.0
#include "search/files/wrapped.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "search/numbers/random.h"

namespace ostinato {
namespace {

TEST(Wrapped, BreaksAtBlanksAndHangs) {
  EXPECT_EQ(wrapped("one two three", 0, 7), "one two\nthree");
  EXPECT_EQ(wrapped("ok  one two three\nend\n", 4, 11), "ok  one two\n    three\nend\n");
  EXPECT_EQ(wrapped("", 2, 5), "");
  EXPECT_EQ(wrapped("\n\n", 2, 5), "\n\n");
}

TEST(Wrapped, LeavesWhatFitsAndWordsThatDoNot) {
  EXPECT_EQ(wrapped("a   b", 0, 5), "a   b");
  EXPECT_EQ(wrapped("abcdefgh", 0, 3), "abcdefgh");
  EXPECT_EQ(wrapped("ab abcdefgh cd", 2, 6), "ab\n  abcdefgh\n  cd");
  EXPECT_EQ(wrapped("abcd   ", 0, 4), "abcd   ");
}

TEST(Wrapped, KeepsEveryWordInOrder) {
  Random random(1);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      text += std::string(random.below(12) + 1, static_cast<char>('a' + i % 26));
      text += random.below(9) == 0 ? '\n' : ' ';
    }
    const std::size_t hang = random.below(8), width = 12 + hang + random.below(30);
    const std::string broken = wrapped(text, hang, width);
    std::istringstream before(text), after(broken);
    for (std::string one, other; before >> one;) {
      ASSERT_TRUE(after >> other);
      ASSERT_EQ(one, other);
    }
    std::istringstream lines(broken);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), width + 1) << broken;
  }
}

}  // namespace
}  // namespace ostinato
