// SPDX-License-Identifier: Apache-2.0
#include "search/files/toml_values.h"

#include <gtest/gtest.h>

#include "tests/support/refusal.h"

namespace ostinato {
namespace {

std::string refusal(const std::string& text) {
  const auto nothing = [](const Value&) {};
  return test::refusal_by([&] { read_toml(text, "f.toml", "", nothing, nothing); });
}

TEST(TomlValuesTest, CharactersBeyondAsciiStandInQuotesAndCommentsAlone) {
  EXPECT_EQ(refusal("a = \"é\" # é\n'é' = '''\né'''\n\"é\\\"é\" = 1\n"), "accepted");
  const std::string why = "not valid TOML: non-ASCII character outside quotes and comments";
  // Those of whom toml++ 3.3 does not know whether they are white space, and some of whom it does.
  for (const char* stray :
       {"é", "\u00a0", "\u1680", "\u180e", "\u2028", "\u2060", "\ufeff", "\U0001f600", "\xff"}) {
    EXPECT_EQ(refusal("a = 1\n" + std::string(stray) + "b = 2\n"), "f.toml:2: " + why) << stray;
    EXPECT_EQ(refusal("a = 1\n\n[b." + std::string(stray) + "]\n"), "f.toml:3: " + why) << stray;
    EXPECT_EQ(refusal("a = [1,\n2" + std::string(stray) + "]\n"), "f.toml:2: " + why) << stray;
  }
  EXPECT_EQ(refusal("a = '''\n\n'''é\n"), "f.toml:3: " + why);
  // Quotes before those that close a long string are its own, and open none.
  EXPECT_EQ(refusal("a = ['''x''''', \"\"\"y\"\"\"\"] é\n"), "f.toml:1: " + why);
}

TEST(TomlValuesTest, CharactersBeyondAsciiFollowALineThatGoesOn) {
  std::vector<std::string> found;
  const auto take = [&](const Value& root) {
    for (const Value& item : root.items) found.push_back(item.text);
  };
  read_toml("a = \"\"\"x \\\n  é\"\"\"\nb = \"\"\"x\\\n\u0100\u4e2d\uff1a\"\"\"\n", "f.toml", "", take,
            [](const Value&) {});
  EXPECT_EQ(found, (std::vector<std::string>{"x é", "x\u0100\u4e2d\uff1a"}));
}

TEST(TomlValuesTest, CharactersBeyondAsciiFollowWhatIsNoNumber) {
  EXPECT_NE(refusal("a = 1[b.'é\n"), "");
  EXPECT_NE(refusal("a = 1'é'\n"), "");
}

}  // namespace
}  // namespace ostinato
