// SPDX-License-Identifier: Apache-2.0
// What a placement's file may not say, with the line, the reason and the remedy.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/search/placement/placement_texts.h"

namespace ostinato {
namespace {

using test::kBlock;
using test::kHead;
using test::kSecond;
using test::Refusal;
using test::refusal;
using test::second;
using test::stages;

class PlacementRefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(PlacementRefusalTest, SaysLineReasonAndRemedy) {
  EXPECT_EQ(refusal(GetParam().text), GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    File, PlacementRefusalTest,
    testing::Values(
        Refusal{"no_format", "name = \"p\"\n",
                "p.toml:1: this is not a placement: it has no 'format', where 'ostinato-placement/1' is "
                "expected; is it the right file?"},
        Refusal{"version", "\nformat = \"ostinato-placement/2\"\nnew_key = 1\n",
                "p.toml:2: 'format' is 'ostinato-placement/2'; this version of ostinato reads "
                "'ostinato-placement/1'"},
        Refusal{"format_type", "format = 1\n",
                "p.toml:1: 'format' is 1; this version of ostinato reads 'ostinato-placement/1'"},
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
    [](const auto& test) { return test.param.what; });

INSTANTIATE_TEST_SUITE_P(
    Several, PlacementRefusalTest,
    testing::Values(
        Refusal{"keys_of_one_table", second("nmae = \"b\"\ndevices = [0]\ntime = -1\nmemory = \"2\"\n"),
                "p.toml:8: [[blocks]] has no 'name'\n"
                "p.toml:9: unknown key 'nmae' in [[blocks]]; did you mean 'name'?\n"
                "p.toml:11: 'time' is -1, out of range: from 0\n"
                "p.toml:12: 'memory' must be a number, not a text"},
        Refusal{"rows",
                "format = \"ostinato-placement/1\"\ntime_unit = \"sec\"\n[[devices]]\nmemory = -1\n" +
                    kBlock + "kind = \"fwd\"\n[[blocks]]\nname = \"b\"\ndevices = [3]\ntime = 1\n",
                "p.toml:2: 'time_unit' is 'sec'; it should be one of ns, us, ms, s\n"
                "p.toml:4: 'memory' is -1, out of range: from 0\n"
                "p.toml:9: unknown kind 'fwd' of block 'a.F'; the kinds are forward, backward, "
                "backward_input, backward_weight, offload, load, other\n"
                "p.toml:12: a device of block 'b' is 3, out of range: from 0 to 0"},
        Refusal{"types_alone",
                "format = \"ostinato-placement/1\"\nmemory_unit = 3\n[[devices]]\nmemory = 2\n" + kBlock +
                    "kind = 3\n[model]\nsha256 = \"" + std::string(64, 'a') +
                    "\"\nlayers = [\"l d\"]\nmicro_batch_size = 1\nstep_memory = [1000]\n",
                "p.toml:2: 'memory_unit' must be a text, not a whole number\n"
                "p.toml:9: 'kind' must be a text, not a whole number"},
        Refusal{"inputs", second(kSecond + "after = [\"a.f\", \"b\"]\n"),
                "p.toml:12: block 'b' comes after unknown block 'a.f'; did you mean 'a.F'?\n"
                "p.toml:12: block 'b' comes after itself"}),
    [](const auto& test) { return test.param.what; });

/// Of a file that is wrong in every row the first are enough.
TEST(PlacementRefusals, ListsTwentyAtMost) {
  std::string text = kHead;
  for (int i = 0; i < 1000; ++i) text += "[[blocks]]\nname = 1\ndevices = [0]\ntime = 1\n";
  const std::string said = refusal(text);
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 20) << said;
  EXPECT_NE(said.find("p.toml:5: 'name'"), std::string::npos) << said;
  EXPECT_NE(said.find("\nThese are the first 20."), std::string::npos) << said;
}

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
    [](const auto& test) { return test.param.what; });

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
            "backward, backward_input, backward_weight, offload, load, other"},
        Refusal{"no_kind", second(kSecond + "kind = \"fwd\"\n"),
                "p.toml:12: unknown kind 'fwd' of block 'b'; the kinds are forward, backward, "
                "backward_input, backward_weight, offload, load, other"},
        Refusal{"duplicate_block", second("name = \"a.F\"\ndevices = [0]\ntime = 1\n"),
                "p.toml:8: duplicate block name 'a.F', first on line 4"},
        Refusal{"duplicate_device", kHead + "name = \"x\"\n[[devices]]\nname = \"x\"\n",
                "p.toml:5: duplicate device name 'x', first on line 3"},
        Refusal{"unknown_input", second(kSecond + "after = [\"a.f\"]\n"),
                "p.toml:12: block 'b' comes after unknown block 'a.f'; did you mean 'a.F'?"},
        Refusal{"far_input", second(kSecond + "after = [\"elsewhere\"]\n"),
                "p.toml:12: block 'b' comes after unknown block 'elsewhere'"},
        Refusal{"input_type", second(kSecond + "after = [1]\n"),
                "p.toml:12: 'after' must hold block names or { block = \"name\", bytes = 0 }, not a whole "
                "number"},
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
    [](const auto& test) { return test.param.what; });

INSTANTIATE_TEST_SUITE_P(
    Stages, PlacementRefusalTest,
    testing::Values(
        Refusal{"layers_type", stages("3", "[1, 2]"),
                "p.toml:6: 'layers' must be a list, not a whole number"},
        Refusal{"layers_size", stages("[0]", "[1, 2]"),
                "p.toml:6: 'layers' must be two whole numbers [first, end), or a list of such ranges"},
        Refusal{"runs_that_touch", stages("[[0, 1], [1, 2]]", "[2, 3]"),
                "p.toml:6: the ranges of 'layers' must be in ascending order, with a gap between two ranges"},
        Refusal{"runs_that_overlap", stages("[[0, 1], [2, 3]]", "[1, 3]"),
                "p.toml:4: stage 's' overlaps stage 't' partly, from layer 2"},
        Refusal{"a_run_of_one", stages("[[0, 1], [2]]", "[1, 2]"),
                "p.toml:6: 'layers' must be two whole numbers [first, end), or a list of such ranges"},
        Refusal{"layers_negative", stages("[-1, 1]", "[1, 2]"),
                "p.toml:6: the first layer is -1, out of range: from 0 to 2147483647"},
        Refusal{"no_layers", stages("[0, 1]", "[1, 1]"), "p.toml:9: stage 't' has no layers"},
        Refusal{"gap", stages("[0, 1]", "[2, 3]"),
                "p.toml:7: stage 't' starts at layer 2, but no stage runs layer 1"},
        Refusal{"not_from_zero", stages("[1, 2]", "[2, 3]"),
                "p.toml:4: stage 's' starts at layer 1, but no stage runs layer 0"},
        Refusal{"overlap", stages("[0, 2]", "[1, 3]"),
                "p.toml:7: stage 't' overlaps stage 's' partly, from layer 1"},
        Refusal{"same_start", stages("[0, 2]", "[0, 3]"),
                "p.toml:7: stage 't' overlaps stage 's' partly, from layer 0"},
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
    [](const auto& test) { return test.param.what; });

}  // namespace
}  // namespace ostinato
