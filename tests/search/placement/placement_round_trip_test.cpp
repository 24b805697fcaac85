// SPDX-License-Identifier: Apache-2.0
// A placement that is written is read back as it was.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "search/placement/placement_toml.h"
#include "tests/search/placement/placement_texts.h"
#include "tests/search/random_plan.h"

namespace ostinato {
namespace {

using test::kBlock;
using test::kHead;
using test::parse;
using test::Random;

/// Names with everything that needs escaping, and figures up to the largest.
void make_awkward(Placement& p, Random& random) {
  const char* names[] = {
      "plain", "with \"quotes\"", "back\\slash", "tab\tline\nnul", "\x01\x7f", "h\xc3\xb6he",
      "",      "a.b = [1]"};
  p.name = names[random.next() % 8];
  for (Block& block : p.blocks) block.name += names[random.next() % 8];
  for (Device& device : p.devices) {
    device.name += names[random.next() % 8];
    device.kind = random.chance(50) ? "H200" : "";
    if (random.chance(50)) device.memory = random.between(0, std::int64_t{1} << random.between(1, 62));
  }
  const std::int64_t unit = random.chance(50) ? 1'000'000 : 1;
  for (Block& block : p.blocks) {
    block.time *= unit * random.between(1, 1000);
    block.memory *= unit * random.between(1, 1 << 20);
  }
  p.link.bytes_per_second = random.between(0, std::numeric_limits<std::int64_t>::max());
}

TEST(PlacementRoundTripTest, RandomPlacementsAreReadBackEqual) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Random random(seed);
    Placement p = test::random_placement(random);
    make_awkward(p, random);
    const std::string text = format_placement(p);
    SCOPED_TRACE(text);
    ASSERT_TRUE(p == parse(text));
    ASSERT_EQ(format_placement(parse(text)), text);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(PlacementRoundTripTest, StagesAndUnitsAreWritten) {
  Placement p = parse(kHead + "[[stages]]\nname = \"a.F\"\nlayers = [0, 3]\n" + kBlock + "memory = 2\n");
  EXPECT_EQ(format_placement(p),
            "format = \"ostinato-placement/1\"\nname = \"p\"\ntime_unit = \"us\"\nmemory_unit = \"MiB\"\n\n"
            "[[devices]]\nname = \"device0\"\n\n[[stages]]\nname = \"a.F\"\nlayers = [0, 3]\n\n"
            "[[blocks]]\nname = \"a.F\"\nstage = \"a.F\"\nkind = \"other\"\ndevices = [0]\ntime = 1\nmemory "
            "= 2\nafter = []\n");
  p.blocks[0].time = 1001;
  EXPECT_NE(format_placement(p).find("time_unit = \"ns\""), std::string::npos);
  EXPECT_TRUE(p == parse(format_placement(p)));
}

TEST(PlacementLargeTest, AHundredThousandBlocksAreReadAndWritten) {
  Placement p;
  p.name = "large";
  for (int d = 0; d < 512; ++d) p.devices.push_back({fmt::format("gpu{}", d), "H200", kUnlimited, 0});
  for (int b = 0; b < 100'000; ++b) {
    Block block;
    block.name = fmt::format("block{}", b);
    block.stage = fmt::format("stage{}", b / 3);
    block.devices = {b % 512};
    block.time = 1000 * (b % 7);
    if (b > 0) block.after.push_back({b - 1, b % 5});
    p.blocks.push_back(std::move(block));
  }
  const std::string text = format_placement(p);
  const Placement read = parse(text);
  ASSERT_EQ(read.blocks.size(), p.blocks.size());
  EXPECT_EQ(read.blocks.back().after[0].block, 99'998);
  EXPECT_EQ(format_placement(read), text);
}

}  // namespace
}  // namespace ostinato
