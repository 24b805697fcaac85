// SPDX-License-Identifier: Apache-2.0
// Readers on damaged files: whatever the bytes are, a reader returns a value or throws InputError. Seeds are
// fixed.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "search/files/error.h"
#include "search/placement/placement_toml.h"
#include "search/placement/shapes.h"
#include "search/plan/plan_json.h"
#include "search/profile/profile_json.h"
#include "tests/search/random_plan.h"

namespace ostinato {
namespace {

using test::Random;

/// Pieces that mean something to one of the readers.
const std::vector<std::string>& tokens() {
  static const std::vector<std::string> all = {"[",
                                               "]",
                                               "[[",
                                               "]]",
                                               "{",
                                               "}",
                                               "\"",
                                               "'",
                                               "\"\"\"",
                                               "'''",
                                               "=",
                                               ":",
                                               ",",
                                               ".",
                                               "\n",
                                               "\r\n",
                                               "#",
                                               "\\",
                                               "\\u",
                                               "-",
                                               "+",
                                               "e",
                                               "_",
                                               "0",
                                               "1e999",
                                               "-1",
                                               "1.5",
                                               "inf",
                                               "nan",
                                               "true",
                                               "null",
                                               "9223372036854775808",
                                               "0x7f",
                                               "1979-05-27",
                                               "07:32",
                                               "\xff",
                                               "\xc3",
                                               "\xe2\x82",
                                               "name",
                                               "blocks",
                                               "after",
                                               "devices",
                                               "time",
                                               "format",
                                               "schedule",
                                               "start",
                                               "a.b.c.d",
                                               "\xef\xbb\xbf",
                                               std::string(1, '\0'),
                                               std::string(70, '['),
                                               std::string(300, '9')};
  return all;
}

std::size_t place(const std::string& text, Random& random) {
  return static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(text.size())));
}

/// One damage: a byte changed, a part cut, doubled or moved, or a token put in.
void damage(std::string& text, Random& random) {
  const std::size_t at = place(text, random);
  const std::size_t size = std::min(text.size() - at, static_cast<std::size_t>(random.between(1, 40)));
  switch (random.between(0, 5)) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(random.between(0, 255));
      break;
    case 1:
      text.erase(at, size);
      break;
    case 2:
      text.insert(place(text, random), text.substr(at, size));
      break;
    case 3:
      text.resize(at);
      break;
    default:
      text.insert(at, tokens()[static_cast<std::size_t>(random.next() % tokens().size())]);
  }
}

/// Runs `read` on damaged copies; counts those that were still read and those that were refused.
void damage_often(const std::string& text, int times, const std::function<void(const std::string&)>& read) {
  int accepted = 0, refused = 0;
  for (int seed = 0; seed < times; ++seed) {
    Random random(static_cast<std::uint64_t>(seed));
    std::string damaged = text;
    for (std::int64_t n = random.between(1, 4); n > 0; --n) damage(damaged, random);
    try {
      read(damaged);
      ++accepted;
    } catch (const InputError& error) {
      ASSERT_EQ(std::string(error.what()).rfind("file", 0), 0u) << error.what();
      ++refused;
    } catch (const std::exception& error) {
      FAIL() << "seed " << seed << ": " << error.what() << "\n" << damaged;
    }
  }
  EXPECT_GT(accepted, 10);
  EXPECT_GT(refused, times / 4);
}

TEST(ReaderFuzzTest, DamagedPlacements) {
  Placement p = shape("m", {.devices = 2, .forward = 1, .backward = 2});
  p.links[{0, 1}] = {.latency = 5, .bytes_per_second = 12'500'000'000};
  damage_often(format_placement(p), 6000, [](const std::string& text) {
    const Placement read = parse_placement(text, "file").placement;
    ASSERT_EQ(format_placement(parse_placement(format_placement(read), "file").placement),
              format_placement(read));
  });
}

TEST(ReaderFuzzTest, DamagedPlans) {
  Random random(1);
  const Placement p = test::random_placement(random);
  const Plan plan = test::random_plan(p, 2, random);
  damage_often(format_plan(plan, p), 6000, [&](const std::string& text) {
    const Plan read = parse_plan(text, "file", p, "");
    ASSERT_EQ(format_plan(parse_plan(format_plan(read, p), "file", p, ""), p), format_plan(read, p));
  });
}

TEST(ReaderFuzzTest, DamagedProfiles) {
  Profile profile;
  profile.timer = "cpu";
  profile.micro_batch_size = 1;
  profile.layers.resize(2);
  profile.layers[1].index = 1;
  profile.operators.push_back({.layer = 0,
                               .name = "aten::mm",
                               .phase = "forward",
                               .calls = 1,
                               .self_time = {},
                               .allocated = 0,
                               .flops = {}});
  profile.transfers.push_back({.from = 0, .to = 1, .link = {}, .residual = 0.5});
  damage_often(format_profile(profile), 6000, [](const std::string& text) {
    const Profile read = parse_profile(text, "file");
    ASSERT_EQ(format_profile(parse_profile(format_profile(read), "file")), format_profile(read));
  });
}

TEST(ReaderFuzzTest, TokensInAnyOrder) {
  for (int seed = 0; seed < 4000; ++seed) {
    Random random(static_cast<std::uint64_t>(seed));
    std::string text;
    for (std::int64_t n = random.between(0, 30); n > 0; --n)
      text += tokens()[random.next() % tokens().size()];
    EXPECT_THROW(parse_placement(text, "file"), InputError) << text;
    EXPECT_THROW(parse_plan(text, "file", Placement{}, ""), InputError) << text;
    EXPECT_THROW(parse_profile(text, "file"), InputError) << text;
  }
}

}  // namespace
}  // namespace ostinato
