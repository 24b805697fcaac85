// SPDX-License-Identifier: Apache-2.0
#include "search/show/measured.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "search/files/error.h"

namespace ostinato {
namespace {
namespace fs = std::filesystem;

/// A folder of traces that is removed with them.
class Traces : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("ostinato-measured-{}", getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(int rank, int device, const std::string& instructions, const std::string& more = "") {
    std::ofstream(folder_ / fmt::format("rank-{}.json", rank))
        << fmt::format(R"({{"format": "ostinato-trace/1", "rank": {}, "device": {}, "step": 1, )"
                       R"("plan_sha256": "ab", "makespan": 300, "step_seconds": [1.5], "peak_memory": 7{},)"
                       "\n\"instructions\": [{}]}}",
                       rank, device, more, instructions);
  }

  static std::string instruction(const std::string& action, int start, int end) {
    return fmt::format(R"({{"text": "0F0", "action": "{}", "stage": 0, "micro_batch": 2, )"
                       R"({}"planned_start": 5, "planned_end": 9, "start": {}, "end": {}}})",
                       action, action.size() > 1 ? R"("peer": 1, "peer_stage": 1, )" : "", start, end);
  }

  std::string failure() const {
    try {
      read_trace(folder_);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }

  fs::path folder_;
};

TEST_F(Traces, AreReadByDevice) {
  write(0, 1, instruction("SEND_F", 40, 50) + "," + instruction("F", 10, 40));
  write(3, 0, instruction("B", 1, 2), R"(, "beside": [["your run now", 400, 0]])");
  const MeasuredStep step = read_trace(folder_);
  EXPECT_EQ(step.plan_sha256, "ab");
  EXPECT_EQ(step.makespan, 300);
  EXPECT_EQ(step.ranks, 2);
  ASSERT_EQ(step.devices.size(), 2u);
  ASSERT_EQ(step.devices[1].size(), 2u);
  EXPECT_EQ(step.devices[1][0].action, "F");  // by start
  EXPECT_EQ(step.devices[1][0].end, 40);
  EXPECT_EQ(step.devices[1][0].planned_start, 5);
  EXPECT_EQ(step.devices[1][0].micro_batch, 2);
}

TEST_F(Traces, OfReplicasAreThoseOfTheLowestRank) {
  write(0, 0, instruction("F", 1, 2));
  write(1, 0, instruction("F", 3, 4));
  write(10, 0, instruction("F", 5, 6));  // before rank 2 by name
  const MeasuredStep step = read_trace(folder_);
  EXPECT_EQ(step.devices[0][0].start, 1);
  EXPECT_EQ(step.ranks, 3);
}

TEST_F(Traces, ThatAreWrongAreRefusedWithTheirPlace) {
  EXPECT_NE(failure().find("no rank-*.json here"), std::string::npos) << failure();
  write(0, 0, instruction("X", 1, 2));
  EXPECT_NE(failure().find("rank-0.json:2: unknown instruction 'X'"), std::string::npos) << failure();
  write(0, 0, instruction("F", 3, 2));
  EXPECT_NE(failure().find("rank-0.json:2: "), std::string::npos) << failure();
  write(0, 0, instruction("F", 1, 2), R"(, "more": 1)");
  EXPECT_NE(failure().find("more"), std::string::npos) << failure();
  write(0, 0, instruction("F", 1, 2));
  std::ofstream(folder_ / "rank-1.json") << R"({"format": "ostinato-trace/1", "rank": 1, "device": 1,)"
                                         << R"("step": 1, "plan_sha256": "cd", "makespan": 300,)"
                                         << R"("step_seconds": [1.5], "instructions": []})";
  EXPECT_NE(failure().find("rank-1.json: belongs to another plan"), std::string::npos) << failure();
}

}  // namespace
}  // namespace ostinato
