// SPDX-License-Identifier: Apache-2.0
#include "search/placement/placement_toml.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "search/files/file.h"
#include "search/files/sha256.h"
#include "tests/search/placement/placement_texts.h"

namespace ostinato {
namespace {

using test::kBlock;
using test::kHead;
using test::parse;
using test::refusal;
using test::stages;

TEST(PlacementTomlTest, ReadsTheExampleOfTheFormat) {
  const Placement p = parse(R"(
format = "ostinato-placement/1"
name = "m-shape-4"
time_unit = "us"
memory_unit = "MiB"
[link]
latency = 0
bandwidth = 0
[[links]]
from = 0
to = 1
latency = 20
bandwidth = 12.5
[[devices]]
name = "gpu0"
kind = "H200"
memory = 40000
static = 12000
[[devices]]
name = "gpu1"
[[blocks]]
name = "embed.F"
stage = "embed"
kind = "forward"
devices = [1, 0]
time = 250
memory = 64
workspace = 8
after = []
[[blocks]]
name = "s0.B"
stage = "s0"
kind = "backward_weight"
devices = [1]
time = 0.0005
memory = -0.25
after = [{ block = "embed.F", bytes = 1048576 }]
)");
  EXPECT_EQ(p.name, "m-shape-4");
  EXPECT_EQ(p.link.latency, 0);
  ASSERT_EQ(p.links.size(), 1u);
  EXPECT_EQ(p.link_between(0, 1).latency, 20'000);
  EXPECT_EQ(p.link_between(0, 1).bytes_per_second, 12'500'000'000);
  ASSERT_EQ(p.devices.size(), 2u);
  EXPECT_EQ(p.devices[0].kind, "H200");
  EXPECT_EQ(p.devices[0].memory, Bytes{40000} << 20);
  EXPECT_EQ(p.devices[0].static_memory, Bytes{12000} << 20);
  EXPECT_EQ(p.devices[1].memory, kUnlimited);
  ASSERT_EQ(p.blocks.size(), 2u);
  EXPECT_EQ(p.blocks[0].devices, (std::vector<int>{0, 1}));
  EXPECT_EQ(p.blocks[0].time, 250'000);
  EXPECT_EQ(p.blocks[0].memory, Bytes{64} << 20);
  EXPECT_EQ(p.blocks[0].workspace, Bytes{8} << 20);
  EXPECT_EQ(p.blocks[1].kind, Kind::backward_weight);
  EXPECT_EQ(p.blocks[1].time, 1);  // 0.5 ns: halves go up
  EXPECT_EQ(p.blocks[1].memory, -(1 << 18));
  ASSERT_EQ(p.blocks[1].after.size(), 1u);
  EXPECT_EQ(p.blocks[1].after[0].block, 0);
  EXPECT_EQ(p.blocks[1].after[0].bytes, 1'048'576);
}

TEST(PlacementTomlTest, DefaultsOfWhatIsLeftOut) {
  const Placement p = parse(kHead + kBlock);
  EXPECT_EQ(p.devices[0].name, "device0");
  EXPECT_EQ(p.blocks[0].stage, "a.F");
  EXPECT_EQ(p.blocks[0].kind, Kind::other);
  EXPECT_EQ(p.blocks[0].time, 1000);
  EXPECT_TRUE(p.stages.empty());
}

TEST(PlacementTomlTest, ABlockMayNameALaterOne) {
  const Placement p =
      parse(kHead + kBlock + "after = [\"b\"]\n[[blocks]]\nname = \"b\"\ndevices = [0]\ntime = 1\n");
  EXPECT_EQ(p.blocks[0].after[0].block, 1);
}

TEST(PlacementTomlTest, ReadsStages) {
  const Placement p = parse(kHead + "[[stages]]\nname = \"a.F\"\nlayers = [0, 3]\n" + kBlock);
  ASSERT_EQ(p.stages.size(), 1u);
  EXPECT_EQ(p.stages[0], (Stage{.name = "a.F", .layers = {0, 1, 2}, .devices = {0}}));
}

TEST(PlacementTomlTest, GivesTheDigestOfTheBytes) {
  EXPECT_EQ(parse_placement(kHead + kBlock, "p.toml").sha256, sha256(kHead + kBlock));
}

TEST(PlacementTomlTest, AByteOrderMarkAndWindowsLineEndsAreRead) {
  std::string text = "\xef\xbb\xbf";
  for (const char c : kHead + kBlock + "memory = 0.5\n")
    text += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(parse(text).blocks[0].memory, 1 << 19);
}

TEST(PlacementTomlTest, NumbersAreReadFromTheirDigits) {
  const auto time = [](const std::string& unit, const std::string& number) {
    return parse("format = \"ostinato-placement/1\"\ntime_unit = \"" + unit +
                 "\"\n[[devices]]\n[[blocks]]\nname = \"\xc3\xa4\"\n" + "devices = [0]\ntime = " + number)
        .blocks[0]
        .time;
  };
  EXPECT_EQ(time("us", "12.5"), 12'500);
  EXPECT_EQ(time("ns", "0.49999999999999999999999"), 0);  // 0.5 as a double
  EXPECT_EQ(time("ns", "2.5"), 3);
  EXPECT_EQ(time("ns", "3.5"), 4);
  EXPECT_EQ(time("ms", "1_000.000_001"), 1'000'000'001);
  EXPECT_EQ(time("s", "9.223372036854775807e9"), 9'223'372'036'854'775'807);
  EXPECT_EQ(time("s", "9007199.254740993"), 9'007'199'254'740'993);  // not a double
  EXPECT_EQ(time("us", "1e-3"), 1);
  EXPECT_EQ(time("us", "1e-300"), 0);
  EXPECT_EQ(time("us", "+0.1"), 100);
}

TEST(PlacementTomlTest, AStageMayRunSeveralRunsOfLayers) {
  const std::string text = stages("[[0, 2], [3, 4]]", "[2, 3]");
  const Placement p = parse(text);
  ASSERT_EQ(p.stages.size(), 2u);
  EXPECT_EQ(p.stages[0].name, "s");
  EXPECT_EQ(p.stages[0].layers, (Layers{0, 1, 3}));
  EXPECT_NE(format_placement(p).find("layers = [[0, 2], [3, 4]]\n"), std::string::npos);
  EXPECT_EQ(parse(format_placement(p)).stages, p.stages);
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(PlacementNestingTest, SixtyFourLevelsAreReadAndOneMoreIsNot) {
  const std::string deep = "nested deeper than 64 levels";
  const std::string format = "format = \"ostinato-placement/1\"\n";
  EXPECT_EQ(refusal(format + "x = " + repeated("[", 64) + repeated("]", 64)),
            "p.toml:2: unknown key 'x' in a placement");
  EXPECT_EQ(refusal(format + "x = " + repeated("[", 65) + repeated("]", 65)), "p.toml:2: " + deep);
  EXPECT_EQ(refusal(format + "x = " + repeated("{ a = ", 65) + "1" + repeated("}", 65)), "p.toml:2: " + deep);
  EXPECT_EQ(refusal(format + "\nx = [\n" + repeated("[\n", 64)), "p.toml:67: " + deep);
  EXPECT_EQ(refusal(format + "[a" + repeated(".a", 64) + "]"), "p.toml:2: " + deep);
  EXPECT_EQ(refusal(format + "a" + repeated(".a", 65) + " = 1"), "p.toml:2: " + deep);
  EXPECT_EQ(refusal(format + "[" + repeated("\"]\".", 64) + "a]\n"), "p.toml:2: " + deep);
  EXPECT_EQ(refusal(format + "[a" + repeated(".a", 40) + "]\nb" + repeated(".b", 40) + " = 1"),
            "p.toml:3: " + deep);
  EXPECT_EQ(refusal(repeated("[", 1000000)), "p.toml:1: " + deep);
  EXPECT_EQ(refusal("a" + repeated(".a", 1000000) + " = 1"), "p.toml:1: " + deep);
}

TEST(PlacementNestingTest, BracketsAndDotsElsewhereDoNotNest) {
  const std::string many = repeated("[{.", 100);
  const Placement p = parse("# " + many + "\n" + kHead + kBlock + "stage = \"" + many +
                            "\\\"[\"\nkind = 'other' # " + many + "\nafter = []\n[[blocks]]\nname = '''" +
                            many + "\n''" + many + "'''\ndevices = [0]\ntime = 1.5\n" +
                            "[[blocks]]\nname = \"\"\"" + many + "\\\"\"\"\"\ndevices = [0]\ntime = 1\n");
  EXPECT_EQ(p.blocks.size(), 3u);
}

TEST(PlacementFileTest, NamesTheFile) {
  const auto path =
      std::filesystem::path(testing::TempDir()) / fmt::format("ostinato-placement-{}.toml", ::getpid());
  write_file(path, kHead + kBlock);
  EXPECT_EQ(read_placement(path).placement.blocks.size(), 1u);
  write_file(path, kHead + "oops = 1\n");
  try {
    read_placement(path);
    ADD_FAILURE() << "accepted";
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()), path.string() + ":4: unknown key 'oops' in [[devices]]");
  }
  std::filesystem::remove(path);
}

TEST(PlacementFileTest, TextOverTheSizeIsRefused) {
  const std::string text(kMaxPlacementBytes + 1, '#');
  EXPECT_EQ(refusal(text), "p.toml: is larger than 256 MiB");
}

}  // namespace
}  // namespace ostinato
