// SPDX-License-Identifier: Apache-2.0
// What cannot be planned gets its message, with the line where it stands, and its exit status.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

/// A placement of one device; `rest` begins on line 4.
std::string with_device(const std::string& rest, const std::string& memory = "8") {
  return "format = \"ostinato-placement/1\"\ntime_unit = \"ns\"\nmemory_unit = \"B\"\n" + rest +
         "[[devices]]\nmemory = " + memory + "\n";
}

std::string block(const std::string& name, const std::string& more) {
  return fmt::format("[[blocks]]\nname = \"{}\"\ndevices = [0]\n{}", name, more);
}

struct BadInput {
  const char* what;
  std::string text;
  int status;
  const char* message;  ///< where it begins, after "ostinato search: " and the folder
};

class BadInputTest : public testing::TestWithParam<BadInput> {};

TEST_P(BadInputTest, HasItsMessageAndStatus) {
  const TemporaryFolder folder;
  const std::string path = folder.write("p.toml", GetParam().text);
  const Result result =
      ostinato_run({"search", path, "--micro-batches", "4", "--output", folder / "plan.json", "--json"});
  EXPECT_EQ(result.status, GetParam().status) << result.err;
  EXPECT_EQ(result.json()["status"], GetParam().status);
  EXPECT_NE(result.err.find(GetParam().message), std::string::npos) << result.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "plan.json"));
}

INSTANTIATE_TEST_SUITE_P(
    Search, BadInputTest,
    testing::Values(
        BadInput{"cycle",
                 with_device(block("a", "time = 1\nafter = [\"b\"]\n") +
                             block("b", "time = 1\nafter = [\"a\"]\n")),
                 3, "p.toml:4: blocks wait for each other: 'a' after 'b' after 'a'"},
        BadInput{"unknown_block", with_device(block("a", "time = 1\nafter = [\"c\"]\n")), 3,
                 "p.toml:8: block 'a' comes after unknown block 'c'"},
        BadInput{"negative_time", with_device(block("a", "time = -1\n")), 3,
                 "p.toml:7: 'time' is -1, out of range: from 0"},
        BadInput{"zero_devices",
                 "format = \"ostinato-placement/1\"\n[[blocks]]\nname = \"a\"\ndevices = []\ntime = 1\n", 3,
                 "p.toml: no [[devices]]: a placement needs at least one"},
        BadInput{"no_device_of_a_block",
                 with_device(block("a", "time = 1\n").replace(23, 15, "devices = []")), 3, "p.toml:6: "},
        BadInput{"overflow_in_the_file",
                 with_device(block("a", "time = 9223372036854775807\n") + block("b", "time = 1\n")), 3,
                 "together exceed 2^63 nanoseconds"},
        BadInput{"overflow_of_all_micro_batches", with_device(block("a", "time = 4611686018427387904\n")), 3,
                 "p.toml: 4 micro-batches reach 2^60 nanoseconds of blocks and transfers, more than can be "
                 "planned; check 'time_unit' and the largest values"},
        BadInput{"memory_of_all_micro_batches",
                 with_device(block("a", "time = 1\nmemory = 1152921504606846976\n"), "9223372036854775807"),
                 3,
                 "p.toml: 4 micro-batches reach 2^62 bytes of memory, more than can be planned; at most 3 "
                 "micro-batches can be planned"},
        BadInput{"a_block_that_never_fits", with_device(block("a", "time = 1\nmemory = 9\n")), 4,
                 "infeasible: "},
        BadInput{"memory_that_no_order_fits",
                 with_device(block("a", "time = 1\nmemory = 5\n") +
                             block("b", "time = 1\nmemory = 5\nafter = [\"a\"]\n") +
                             block("c", "time = 1\nmemory = -10\nafter = [\"b\"]\n")),
                 4, "infeasible: "},
        // What takes no time can take and give back at one instant, which the proofs do not follow.
        BadInput{"no_order_and_no_proof",
                 "format = \"ostinato-placement/1\"\ntime_unit = \"ns\"\nmemory_unit = \"B\"\n" +
                     block("a", "time = 0\nmemory = 10\n") +
                     "[[blocks]]\nname = \"x\"\ndevices = [1]\ntime = 1\nafter = [\"a\"]\n" +
                     block("c", "time = 0\nmemory = -10\nafter = [\"x\"]\n") +
                     "[[devices]]\nmemory = 8\n[[devices]]\n",
                 5, "undecided: no order was found that fits the memory, but one may exist"},
        BadInput{"memory_that_adds_up", with_device(block("a", "time = 1\nmemory = 3\n")), 4,
                 "infeasible: "}),
    [](const auto& test) { return test.param.what; });

}  // namespace
}  // namespace ostinato::cli::test
