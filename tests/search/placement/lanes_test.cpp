// SPDX-License-Identifier: Apache-2.0
#include "search/placement/lanes.h"

#include <gtest/gtest.h>

#include "search/placement/capacity.h"
#include "search/placement/placement_toml.h"
#include "search/plan/orders.h"
#include "tests/search/placement/placement_texts.h"
#include "tests/search/small.h"

namespace ostinato {
namespace {

using test::parse;
using test::refusal;

const std::string kLanes = R"(format = "ostinato-placement/1"
time_unit = "ns"
[link]
latency = 7
[[links]]
from = 0
to = 1
latency = 9
[[devices]]
name = "a"
lanes = ["network", "copy"]
[[devices]]
name = "b"
lanes = ["network"]
)";

std::string on_lane(const std::string& lane, const std::string& devices = "[0]",
                    const std::string& more = "") {
  return kLanes + "[[blocks]]\nname = \"x\"\ntime = 1\ndevices = " + devices + "\nlane = " + lane + "\n" +
         more;
}

TEST(Lanes, StandBehindAllDevicesAndAreNamedAfterTheirOwn) {
  const Placement p = parse(on_lane("\"network\"", "[0, 1]"));
  ASSERT_EQ(p.devices.size(), 5u);
  EXPECT_EQ(p.devices[2].name, "a:network");
  EXPECT_EQ(p.devices[3].name, "a:copy");
  EXPECT_EQ(p.devices[4].lane_of, 1);
  EXPECT_EQ(p.blocks[0].devices, (std::vector<int>{2, 4}));
  EXPECT_EQ(count_without_lanes(p), 2);
  EXPECT_EQ(with_lanes_beside(p), (std::vector<int>{0, 2, 3, 1, 4}));
  EXPECT_EQ(parse(on_lane("[\"compute\", \"copy\"]")).blocks[0].devices, (std::vector<int>{0, 3}));
}

TEST(Lanes, AreWhereTheirDeviceIs) {
  const Placement p = parse(on_lane("\"network\""));
  EXPECT_EQ(p.link_between(0, 2).latency, 0);
  EXPECT_EQ(p.link_between(3, 2).latency, 0);
  EXPECT_EQ(p.link_between(0, 4).latency, 9);
  EXPECT_EQ(p.link_between(2, 4).latency, 9);
  EXPECT_EQ(p.link_between(4, 2).latency, 7);
}

TEST(Lanes, AreWrittenAsTheyWereRead) {
  for (const char* lane : {"\"copy\"", "[\"compute\", \"network\"]", "\"compute\""}) {
    const Placement p = parse(on_lane(lane));
    const std::string text = format_placement(p);
    EXPECT_EQ(format_placement(parse(text)), text);
    EXPECT_EQ(parse(text).blocks[0].devices, p.blocks[0].devices);
    EXPECT_EQ(parse(text).links.size(), p.links.size());
  }
}

TEST(Lanes, LeaveTheMemoryOfABlockToItsDevice) {
  Placement p = parse(on_lane("[\"compute\", \"copy\"]", "[0]", "memory = 3\nworkspace = 2\n"));
  EXPECT_EQ(peak_memory(p, {{0, 0, 0}, {0, 1, 1}}), (std::vector<Bytes>{8 << 20, 0, 0, 0, 0}));
  p = within_capacity(p, 4 << 20);
  EXPECT_EQ(p.devices[0].memory, 4 << 20);
  EXPECT_EQ(p.devices[3].memory, kUnlimited);
}

TEST(Lanes, RefuseWhatTheyCannotHold) {
  EXPECT_EQ(refusal(on_lane("\"netwrok\"")),
            "p.toml:19: device 'a' has no lane 'netwrok'; [[devices]] names a device's 'lanes'");
  EXPECT_EQ(refusal(on_lane("\"copy\"", "[0, 1]")),
            "p.toml:19: device 'b' has no lane 'copy'; [[devices]] names a device's 'lanes'");
  EXPECT_EQ(refusal(on_lane("[\"copy\", \"copy\"]")),
            "p.toml:19: 'lane' must name at least one lane, and none twice");
  EXPECT_EQ(refusal(on_lane("\"copy\"", "[0]", "memory = 1\n")),
            "p.toml:15: block 'x' is on lane 'copy', which has no memory: count what it holds in a block of "
            "its device before it, which takes it, and in one behind it, which gives it back");
  EXPECT_EQ(refusal(on_lane("\"copy\"", "[0]", "workspace = 1\n")).substr(0, 40),
            "p.toml:15: block 'x' is on lane 'copy', ");
  EXPECT_EQ(refusal(on_lane("\"copy\"", "[2]")),
            "p.toml:18: a device of block 'x' is 2, out of range: from 0 to 1");
  EXPECT_EQ(
      refusal("format = \"ostinato-placement/1\"\n[[devices]]\nlanes = [\"x\", \"x\", \"compute\", 3]\n"),
      "p.toml:3: device 'device0' has lane 'x' twice\n"
      "p.toml:3: \"compute\" is device 'device0' itself, and no lane of it\n"
      "p.toml:3: 'lanes' of device 'device0' must hold names, such as \"network\"");
}

}  // namespace
}  // namespace ostinato
