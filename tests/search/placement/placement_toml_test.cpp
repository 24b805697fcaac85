// SPDX-License-Identifier: Apache-2.0
#include "search/placement/placement_toml.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "search/files/error.h"
#include "search/files/file.h"
#include "search/files/sha256.h"
#include "tests/search/random_plan.h"

namespace ostinato {
namespace {

using test::Random;

/// Lines 1 to 3 of most tests here.
const std::string kHead = "format = \"ostinato-placement/1\"\nname = \"p\"\n[[devices]]\n";
/// A block for what follows it; lines 4 to 7 behind kHead.
const std::string kBlock = "[[blocks]]\nname = \"a.F\"\ndevices = [0]\ntime = 1\n";

Placement parse(const std::string& text) { return parse_placement(text, "p.toml").placement; }

std::string refusal(const std::string& text) {
  try {
    parse_placement(text, "p.toml");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

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

struct Refusal {
  const char* what;
  std::string text;
  std::string message;
};

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.what; }

class PlacementRefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(PlacementRefusalTest, SaysLineReasonAndRemedy) {
  EXPECT_EQ(refusal(GetParam().text), GetParam().message);
}

std::string second(const std::string& fields) {
  return kHead + kBlock + "[[blocks]]\n" + fields;
}  // from line 8
const std::string kSecond = "name = \"b\"\ndevices = [0]\ntime = 1\n";  // 9 to 11

std::string stages(const std::string& first, const std::string& other) {
  return kHead + "[[stages]]\nname = \"s\"\nlayers = " + first +
         "\n[[stages]]\nname = \"t\"\nlayers = " + other + "\n" + kBlock + "stage = \"s\"\n[[blocks]]\n" +
         kSecond + "stage = \"t\"\n";
}

INSTANTIATE_TEST_SUITE_P(
    File, PlacementRefusalTest,
    testing::Values(
        Refusal{"no_format", "name = \"p\"\n",
                "p.toml:1: no 'format'; it should be \"ostinato-placement/1\""},
        Refusal{"version", "\nformat = \"ostinato-placement/2\"\nnew_key = 1\n",
                "p.toml:2: 'format' is 'ostinato-placement/2'; this version reads 'ostinato-placement/1'"},
        Refusal{"format_type", "format = 1\n",
                "p.toml:1: 'format' is 1; this version reads 'ostinato-placement/1'"},
        Refusal{"unknown_key", kHead + "nmae = \"x\"\n",
                "p.toml:4: unknown key 'nmae' in [[devices]]; did you mean 'name'?"},
        Refusal{"far_key", "format = \"ostinato-placement/1\"\nzzzzzz = 1\n",
                "p.toml:2: unknown key 'zzzzzz' in a placement"},
        Refusal{"unknown_table", "format = \"ostinato-placement/1\"\n[[device]]\n",
                "p.toml:2: unknown key 'device' in a placement; did you mean 'devices'?"},
        Refusal{"unknown_in_link", "format = \"ostinato-placement/1\"\n[link]\nlatncy = 1\n",
                "p.toml:3: unknown key 'latncy' in [link]; did you mean 'latency'?"},
        Refusal{"duplicate_key", kHead + "name = \"x\"\nname = \"y\"\n",
                "p.toml:5: not valid TOML: cannot redefine existing string 'name'"},
        Refusal{"syntax", "format = \"ostinato-placement/1\"\nname = \n",
                "p.toml:2: not valid TOML: expected value, saw '\\n'"},
        Refusal{
            "no_table_name", "[=]\n",
            "p.toml:1: not valid TOML: expected bare key starting character or string delimiter, saw '='"},
        Refusal{"no_devices", "format = \"ostinato-placement/1\"\n",
                "p.toml: no [[devices]]: a placement needs at least one"},
        Refusal{"no_blocks", kHead, "p.toml: no [[blocks]]: a placement needs at least one"},
        Refusal{"blocks_type", kHead + "[blocks]\nname = \"a\"\n",
                "p.toml:4: 'blocks' must be a list, not a table"},
        Refusal{"devices_type", "format = \"ostinato-placement/1\"\ndevices = 4\n",
                "p.toml:2: 'devices' must be a list, not a whole number"},
        Refusal{"block_type", "format = \"ostinato-placement/1\"\nblocks = [1]\n[[devices]]\n",
                "p.toml:2: [[blocks]] must be a table, not a whole number"},
        Refusal{"name_type", "format = \"ostinato-placement/1\"\nname = 1979-05-27\n",
                "p.toml:2: 'name' must be a text, not a date"},
        Refusal{"time_unit", "format = \"ostinato-placement/1\"\ntime_unit = \"sec\"\n",
                "p.toml:2: 'time_unit' is 'sec'; it should be one of ns, us, ms, s"},
        Refusal{"memory_unit", "format = \"ostinato-placement/1\"\nmemory_unit = \"MB\"\n",
                "p.toml:2: 'memory_unit' is 'MB'; it should be one of B, KiB, MiB, GiB"}),
    [](const auto& info) { return info.param.what; });

INSTANTIATE_TEST_SUITE_P(
    Numbers, PlacementRefusalTest,
    testing::Values(
        Refusal{"negative_time", second("name = \"b\"\ndevices = [0]\ntime = -1\n"),
                "p.toml:11: 'time' is -1, out of range: from 0"},
        Refusal{"slightly_negative_time", second("name = \"b\"\ndevices = [0]\ntime = -0.0001\n"),
                "p.toml:11: 'time' is -0.0001, out of range: from 0"},
        Refusal{"overflow_after_conversion",
                second("name = \"b\"\ndevices = [0]\ntime = 9223372036854775807\n"),
                "p.toml:11: 'time' is 9223372036854775807, out of range: too large for 64 bits in its "
                "smallest unit"},
        Refusal{"float_overflow", second("name = \"b\"\ndevices = [0]\ntime = 1e300\n"),
                "p.toml:11: 'time' is 1e300, out of range: too large for 64 bits in its smallest unit"},
        Refusal{"integer_overflow", second("name = \"b\"\ndevices = [0]\ntime = 9223372036854775808\n"),
                "p.toml:11: not valid TOML: '9223372036854775808' is not "
                "representable in 64 bits"},
        Refusal{"nan", second("name = \"b\"\ndevices = [0]\ntime = nan\n"),
                "p.toml:11: inf and nan are not allowed: write a finite number"},
        Refusal{"inf", second("name = \"b\"\ndevices = [0]\ntime = 1\nmemory = -inf\n"),
                "p.toml:12: inf and nan are not allowed: write a finite number"},
        Refusal{"time_type", second("name = \"b\"\ndevices = [0]\ntime = \"1\"\n"),
                "p.toml:11: 'time' must be a number, not a text"},
        Refusal{"date", second("name = \"b\"\ndevices = [0]\ntime = 12:30:00\n"),
                "p.toml:11: 'time' must be a number, not a date"},
        Refusal{"negative_workspace", second(kSecond + "workspace = -1\n"),
                "p.toml:12: 'workspace' is -1, out of range: from 0"},
        Refusal{"negative_bytes", second(kSecond + "after = [{ block = \"a.F\", bytes = -1 }]\n"),
                "p.toml:12: 'bytes' is -1, out of range: from 0"},
        Refusal{"part_of_a_byte", second(kSecond + "after = [{ block = \"a.F\", bytes = 1.5 }]\n"),
                "p.toml:12: 'bytes' must be a whole number, not 1.5"},
        Refusal{"negative_capacity", kHead + "memory = -1\n",
                "p.toml:4: 'memory' is -1, out of range: from 0"},
        Refusal{"negative_static", kHead + "static = -1\n", "p.toml:4: 'static' is -1, out of range: from 0"},
        Refusal{"negative_latency", "format = \"ostinato-placement/1\"\n[link]\nlatency = -1\n",
                "p.toml:3: 'latency' is -1, out of range: from 0"},
        Refusal{"negative_bandwidth", "format = \"ostinato-placement/1\"\n[link]\nbandwidth = -0.5\n",
                "p.toml:3: 'bandwidth' is -0.5, out of range: from 0"},
        Refusal{"total_time",
                "format = \"ostinato-placement/1\"\ntime_unit = \"ns\"\n[[devices]]\n" + kBlock +
                    "[[blocks]]\nname = \"b\"\ndevices = [0]\ntime = 9223372036854775807\n",
                "p.toml:8: the times of one micro-batch together exceed 2^63 nanoseconds"},
        Refusal{"total_memory", kHead + "static = 8796093022207\n" + kBlock + "memory = -1\n",
                "p.toml:5: the memory of all blocks together exceeds 2^63 bytes"},
        Refusal{"transfer_time",
                kHead + "[[devices]]\n[link]\nlatency = 9223372036854775\n" + kBlock + "[[blocks]]\n" +
                    "name = \"b\"\ndevices = [1]\ntime = 0\nafter = [\"a.F\"]\n",
                "p.toml:11: the times of one micro-batch together exceed 2^63 nanoseconds"}),
    [](const auto& info) { return info.param.what; });

INSTANTIATE_TEST_SUITE_P(
    Names, PlacementRefusalTest,
    testing::Values(
        Refusal{"no_name", second("devices = [0]\ntime = 1\n"), "p.toml:8: [[blocks]] has no 'name'"},
        Refusal{"no_time", second("name = \"b\"\ndevices = [0]\n"), "p.toml:8: [[blocks]] has no 'time'"},
        Refusal{"no_devices_key", second("name = \"b\"\ntime = 1\n"),
                "p.toml:8: [[blocks]] has no 'devices'"},
        Refusal{"kind", second(kSecond + "kind = \"forwards\"\n"),
                "p.toml:12: unknown kind 'forwards' of block 'b'; did you mean 'forward'?"},
        Refusal{
            "kind_with_controls", second(kSecond + "kind = \"a\\n\\u001b[31m\\u202e\\u0085\"\n"),
            "p.toml:12: unknown kind 'a\\n\\u001b[31m\\u202e\\u0085' of block 'b'; the kinds are forward, "
            "backward, backward_input, backward_weight, other"},
        Refusal{"no_kind", second(kSecond + "kind = \"fwd\"\n"),
                "p.toml:12: unknown kind 'fwd' of block 'b'; the kinds are forward, backward, "
                "backward_input, backward_weight, other"},
        Refusal{"duplicate_block", second("name = \"a.F\"\ndevices = [0]\ntime = 1\n"),
                "p.toml:8: duplicate block name 'a.F', first on line 4"},
        Refusal{"duplicate_device", kHead + "name = \"x\"\n[[devices]]\nname = \"x\"\n",
                "p.toml:5: duplicate device name 'x', first on line 3"},
        Refusal{"unknown_input", second(kSecond + "after = [\"a.f\"]\n"),
                "p.toml:12: block 'b' comes after unknown block 'a.f'; did you mean 'a.F'?"},
        Refusal{"far_input", second(kSecond + "after = [\"elsewhere\"]\n"),
                "p.toml:12: block 'b' comes after unknown block 'elsewhere'"},
        Refusal{
            "input_type", second(kSecond + "after = [1]\n"),
            "p.toml:12: 'after' holds block names or { block = \"name\", bytes = 0 }, not a whole number"},
        Refusal{"input_key", second(kSecond + "after = [{ blok = \"a.F\" }]\n"),
                "p.toml:12: unknown key 'blok' in 'after'; did you mean 'block'?"},
        Refusal{"input_twice", second(kSecond + "after = [\"a.F\", { block = \"a.F\", bytes = 1 }]\n"),
                "p.toml:8: block 'b' names input 'a.F' twice"},
        Refusal{"itself", second(kSecond + "after = [\"b\"]\n"), "p.toml:12: block 'b' comes after itself"},
        Refusal{"cycle",
                kHead + kBlock + "after = [\"b\"]\n[[blocks]]\n" + kSecond +
                    "after = [\"c\"]\n[[blocks]]\nname = " +
                    "\"c\"\ndevices = [0]\ntime = 1\nafter = [\"a.F\"]\n",
                "p.toml:4: blocks wait for each other: 'a.F' after 'b' after 'c' after 'a.F'"},
        Refusal{"device_range", second("name = \"b\"\ndevices = [0, 1]\ntime = 1\n"),
                "p.toml:10: a device of block 'b' is 1, out of range: from 0 to 0"},
        Refusal{"device_negative", second("name = \"b\"\ndevices = [-1]\ntime = 1\n"),
                "p.toml:10: a device of block 'b' is -1, out of range: from 0 to 0"},
        Refusal{"device_by_name", second("name = \"b\"\ndevices = [\"device0\"]\ntime = 1\n"),
                "p.toml:10: a device of block 'b' must be a whole number, not a text"},
        Refusal{"empty_devices", second("name = \"b\"\ndevices = []\ntime = 1\n"),
                "p.toml:10: block 'b' has no devices"},
        Refusal{"device_twice", second("name = \"b\"\ndevices = [0, 0]\ntime = 1\n"),
                "p.toml:10: block 'b' names device 0 twice"},
        Refusal{"link_range", kHead + "[[links]]\nfrom = 0\nto = 1\n" + kBlock,
                "p.toml:6: 'to' is 1, out of range: from 0 to 0"},
        Refusal{"link_itself", kHead + "[[links]]\nfrom = 0\nto = 0\n" + kBlock,
                "p.toml:4: a link from device 0 to itself"},
        Refusal{"link_without_end", kHead + "[[links]]\nfrom = 0\n" + kBlock,
                "p.toml:4: [[links]] has no 'to'"},
        Refusal{"link_twice",
                kHead + "[[devices]]\n[[links]]\nfrom = 0\nto = 1\n[[links]]\nfrom = 0\nto = 1\n" + kBlock,
                "p.toml:8: duplicate link from device 0 to 1"}),
    [](const auto& info) { return info.param.what; });

INSTANTIATE_TEST_SUITE_P(
    Stages, PlacementRefusalTest,
    testing::Values(
        Refusal{"layers_type", stages("3", "[1, 2]"),
                "p.toml:6: 'layers' must be a list, not a whole number"},
        Refusal{"layers_size", stages("[0]", "[1, 2]"),
                "p.toml:6: 'layers' must be [first, end): two whole numbers, or a list of such runs"},
        Refusal{"runs_that_touch", stages("[[0, 1], [1, 2]]", "[2, 3]"),
                "p.toml:6: the runs of 'layers' must rise, with a layer left out between two of them"},
        Refusal{"runs_that_overlap", stages("[[0, 1], [2, 3]]", "[1, 3]"),
                "p.toml:4: stage 's' overlaps stage 't' in part, from layer 2"},
        Refusal{"a_run_of_one", stages("[[0, 1], [2]]", "[1, 2]"),
                "p.toml:6: 'layers' must be [first, end): two whole numbers, or a list of such runs"},
        Refusal{"layers_negative", stages("[-1, 1]", "[1, 2]"),
                "p.toml:6: the first layer is -1, out of range: from 0 to 2147483647"},
        Refusal{"no_layers", stages("[0, 1]", "[1, 1]"), "p.toml:9: stage 't' has no layers"},
        Refusal{"gap", stages("[0, 1]", "[2, 3]"),
                "p.toml:7: stage 't' starts at layer 2, but no stage runs layer 1"},
        Refusal{"not_from_zero", stages("[1, 2]", "[2, 3]"),
                "p.toml:4: stage 's' starts at layer 1, but no stage runs layer 0"},
        Refusal{"overlap", stages("[0, 2]", "[1, 3]"),
                "p.toml:7: stage 't' overlaps stage 's' in part, from layer 1"},
        Refusal{"same_start", stages("[0, 2]", "[0, 3]"),
                "p.toml:7: stage 't' overlaps stage 's' in part, from layer 0"},
        Refusal{"both_directions", stages("[0, 2]", "[0, 2]"), "accepted"},
        Refusal{"unlisted", kHead + "[[stages]]\nname = \"a.f\"\nlayers = [0, 1]\n" + kBlock,
                "p.toml:7: stage 'a.F' of block 'a.F' is not in [[stages]]; did you mean 'a.f'?"},
        Refusal{
            "unused",
            kHead +
                "[[stages]]\nname = \"a.F\"\nlayers = [0, 1]\n[[stages]]\nname = \"x\"\nlayers = [1, 2]\n" +
                kBlock,
            "p.toml:7: no block runs stage 'x'"},
        Refusal{"twice",
                kHead +
                    "[[stages]]\nname = \"s\"\nlayers = [0, 1]\n[[stages]]\nname = \"s\"\nlayers = [1, 2]\n" +
                    kBlock,
                "p.toml:7: duplicate stage name 's'"}),
    [](const auto& info) { return info.param.what; });

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
  EXPECT_EQ(refusal(text), "p.toml: is larger than 268435456 bytes");
}

void expect_equal(const Placement& a, const Placement& b) {
  EXPECT_EQ(a.name, b.name);
  const auto same_link = [](const Link& x, const Link& y) {
    return x.latency == y.latency && x.bytes_per_second == y.bytes_per_second;
  };
  EXPECT_TRUE(same_link(a.link, b.link));
  ASSERT_EQ(a.links.size(), b.links.size());
  for (const auto& [pair, link] : a.links) {
    ASSERT_TRUE(b.links.contains(pair));
    EXPECT_TRUE(same_link(link, b.links.at(pair)));
  }
  ASSERT_EQ(a.devices.size(), b.devices.size());
  for (std::size_t d = 0; d < a.devices.size(); ++d) {
    EXPECT_EQ(a.devices[d].name, b.devices[d].name);
    EXPECT_EQ(a.devices[d].kind, b.devices[d].kind);
    EXPECT_EQ(a.devices[d].memory, b.devices[d].memory);
    EXPECT_EQ(a.devices[d].static_memory, b.devices[d].static_memory);
  }
  EXPECT_EQ(a.stages, b.stages);
  ASSERT_EQ(a.blocks.size(), b.blocks.size());
  for (std::size_t i = 0; i < a.blocks.size(); ++i) {
    const Block& x = a.blocks[i];
    const Block& y = b.blocks[i];
    EXPECT_EQ(x.name, y.name);
    EXPECT_EQ(x.stage, y.stage);
    EXPECT_EQ(x.kind, y.kind);
    EXPECT_EQ(x.devices, y.devices);
    EXPECT_EQ(x.time, y.time);
    EXPECT_EQ(x.memory, y.memory);
    EXPECT_EQ(x.workspace, y.workspace);
    ASSERT_EQ(x.after.size(), y.after.size());
    for (std::size_t j = 0; j < x.after.size(); ++j) {
      EXPECT_EQ(x.after[j].block, y.after[j].block);
      EXPECT_EQ(x.after[j].bytes, y.after[j].bytes);
    }
  }
}

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
    expect_equal(p, parse(text));
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
  expect_equal(p, parse(format_placement(p)));
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
