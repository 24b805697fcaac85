// SPDX-License-Identifier: Apache-2.0
// `partition GRAPH.csv`: an operator graph onto devices that differ.

#include <gtest/gtest.h>

#include <stdexcept>

#include "bindings/core/graph_partition.h"
#include "tests/cli/support/cli_run.h"

namespace ostinato::cli::test {
namespace {

// 1 feeds 2 and 3, which feed 4; 5 needs a GPU and stands alone.
constexpr const char* kGraph =
    "Id,Out,In,Colocation,Tensor,Operations,RAM,Constraint,Name\n"
    "1,2;3,,,10,100,1,NO,a\n"
    "2,4,1,,10,100,1,NO,b\n"
    "3,4,1,,10,100,1,NO,c\n"
    "4,,2;3,,10,100,1,NO,d\n"
    "5,,,,10,50,1,GPU,e\n";
constexpr const char* kDevices =
    "Id,RAM,Operations,Rates,Type\n"
    "7,1000,100,10,CPU\n"
    "8,1000,50,,GPU\n";

class PartitionGraphCommand : public testing::Test {
 protected:
  Result run(std::vector<std::string> more) const {
    std::vector<std::string> args{"partition", graph_, "--devices", devices_};
    args.insert(args.end(), more.begin(), more.end());
    return ostinato_run(args);
  }

  const TemporaryFolder folder_;
  const std::string graph_ = folder_.write("graph.csv", kGraph);
  const std::string devices_ = folder_.write("devices.csv", kDevices);
};

TEST_F(PartitionGraphCommand, BestIsProvedHereAndWritten) {
  const Result result = run({"--output", folder_ / "out.csv", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.json()["makespan"], 4.0);  // all four on the CPU; a transfer to the GPU and back costs 2
  EXPECT_EQ(result.json()["lower_bound"], 4.0);
  EXPECT_EQ(result.json()["gap_percent"], 0.0);
  EXPECT_FALSE(result.json()["starts"].empty());
  EXPECT_EQ(read_text(folder_ / "out.csv"),
            "id,device,start,end\n"
            "1,7,0.000000000,1.000000000\n"
            "2,7,1.000000000,2.000000000\n"
            "3,7,2.000000000,3.000000000\n"
            "4,7,3.000000000,4.000000000\n"
            "5,8,0.000000000,1.000000000\n");
}

/// What must_hold() says of it.
std::string fault_of(const graph::GraphCosts& costs, const core::GraphOutcome& outcome) {
  try {
    core::must_hold(costs, outcome);
    return "";
  } catch (const std::logic_error& error) {
    return error.what();
  }
}

TEST_F(PartitionGraphCommand, AnOutcomeThatIsWrongIsNotPrinted) {
  const core::GraphProblem problem = core::read_graph_problem(graph_, devices_);
  const graph::GraphCosts costs = core::costs_of(problem);
  const core::GraphOutcome right = core::assign(problem, costs, {});
  EXPECT_EQ(fault_of(costs, right), "");
  core::GraphOutcome wrong = right;
  wrong.assignment[4] = 0;  // 5 needs the GPU
  EXPECT_NE(fault_of(costs, wrong).find("vertex 5 is on device 7, which is of another kind"),
            std::string::npos);
  wrong = right;
  --wrong.start[1];
  EXPECT_NE(fault_of(costs, wrong).find("vertex 2 starts before the tensor of 1 arrives"), std::string::npos);
  wrong = right;
  --wrong.makespans.front();
  EXPECT_NE(fault_of(costs, wrong).find("does not end at the makespan"), std::string::npos);
  wrong = right;
  ++wrong.lower_bound;
  EXPECT_NE(fault_of(costs, wrong).find("the lower bound is above"), std::string::npos);
}

TEST_F(PartitionGraphCommand, AStrategyIsSimulatedUnderItsSchedule) {
  const Result result = run({"--strategy", "critical-path", "--schedule", "msr"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("critical-path + msr: 5 vertices, 4 edges on 2 of 2 devices"), std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("proven bound          4"), std::string::npos) << result.out;
  const Result hash = run({"--strategy=hash", "--json"});
  EXPECT_EQ(hash.json()["method"], "hash + pct");
}

TEST_F(PartitionGraphCommand, TimesHaveFourDigits) {
  const auto printed = [&](const char* operations) {
    const std::string graph =
        folder_.write("one.csv", std::string("id,s,p,c,t,o,m,k,n\n1,,,,0,") + operations + ",1,NO,a\n");
    const std::string device = folder_.write("device.csv", "id,memory,speed,rates,kind\n0,1000,8,,CPU\n");
    const std::string out = ostinato_run({"partition", graph, "--devices", device}).out;
    const std::size_t at = out.find("makespan") + 8;
    return out.substr(at, out.find('\n', at) - at);
  };
  EXPECT_EQ(printed("70"), "           8.75");
  EXPECT_EQ(printed("9879"), "           1235");
  EXPECT_EQ(printed("987654"), "         123457");
}

TEST_F(PartitionGraphCommand, SeveralRunsGiveMeanAndSpread) {
  const Result result = run({"--strategy", "hash", "--runs", "8", "--json"});
  ASSERT_EQ(result.status, 0) << result.err;
  const auto json = result.json();
  EXPECT_EQ(json["runs"]["count"], 8);
  EXPECT_LE(json["makespan"], json["runs"]["mean"]);
  EXPECT_LE(json["runs"]["mean"], json["runs"]["highest"]);
}

TEST_F(PartitionGraphCommand, ThePublishedProgramSendsByOperations) {
  const auto paper = run({"--strategy", "hash", "--json"}).json();
  const auto program = run({"--strategy", "hash", "--published-program", "--json"}).json();
  EXPECT_GT(program["makespan"], paper["makespan"]);
  EXPECT_EQ(run({"--published-program"}).status, 2);
}

TEST_F(PartitionGraphCommand, OneDeviceIsEnough) {
  const std::string graph =
      folder_.write("one.csv", "id,s,p,c,t,o,m,k,n\n1,2,,,1,10,1,NO,a\n2,,,,1,10,1,NO,b\n");
  const std::string device = folder_.write("device.csv", "id,memory,speed,rates,kind\n0,1000,10,,CPU\n");
  for (const char* strategy : {"hash", "batch-split", "critical-path", "mite", "dfs", "heft", "best"}) {
    const Result result =
        ostinato_run({"partition", graph, "--devices", device, "--strategy", strategy, "--json"});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.json()["makespan"], 2.0);
    EXPECT_EQ(result.json()["lower_bound"], 2.0);
  }
}

TEST_F(PartitionGraphCommand, WhatFitsInNoWayIsInfeasible) {
  const std::string graph =
      folder_.write("full.csv", "id,s,p,c,t,o,m,k,n\n1,,,,0,1,6,NO,a\n2,,,,0,1,6,NO,b\n3,,,,0,1,6,NO,c\n");
  const std::string device =
      folder_.write("two.csv", "id,memory,speed,rates,kind\n0,10,1,5,CPU\n1,10,1,,CPU\n");
  const Result result = ostinato_run({"partition", graph, "--devices", device});
  EXPECT_EQ(result.status, 4);
  EXPECT_NE(result.err.find("no assignment fits"), std::string::npos) << result.err;
}

TEST_F(PartitionGraphCommand, BadInputNamesFileAndLine) {
  const std::string bad = folder_.write("bad.csv", std::string(kGraph) + "6,9,,,0,1,0,NO,f\n");
  const Result result = ostinato_run({"partition", bad, "--devices", devices_});
  EXPECT_EQ(result.status, 3);
  EXPECT_NE(result.err.find(bad + ":7: vertex 6 names 9 as a successor, but no row has that id"),
            std::string::npos)
      << result.err;
  const std::string cpus = folder_.write("cpus.csv", "Id,RAM,Operations,Rates,Type\n7,1000,100,,CPU\n");
  EXPECT_EQ(ostinato_run({"partition", graph_, "--devices", cpus}).status, 4);
  const Result typo = run({"--strategy", "mitte"});
  EXPECT_EQ(typo.status, 2);
  EXPECT_NE(typo.err.find("did you mean mite?"), std::string::npos) << typo.err;
}

TEST_F(PartitionGraphCommand, WhatOnlyAProfileNeedsIsRefused) {
  const std::vector<std::vector<std::string>> needing = {{"--device-memory", "1GiB"}, {"--inference"}};
  for (const auto& words : needing) {
    const Result result = run(words);
    EXPECT_EQ(result.status, 2);
    EXPECT_NE(result.err.find(words.front() + " is for a profile (.json)"), std::string::npos) << result.err;
  }
}

TEST_F(PartitionGraphCommand, EveryStrategyTakesAProfile) {
  const std::string profile = folder_.write("profile.json", profile_text({2000, 1000, 3000}));
  for (const char* strategy : {"hash", "batch-split", "critical-path", "mite", "dfs", "heft", "best"}) {
    const Result result =
        ostinato_run({"partition", profile, "--devices", "2", "--strategy", strategy, "--json"});
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.json()["lower_bound"], 18'000) << strategy;  // a chain, there and back
    EXPECT_GE(result.json()["makespan"], 18'000) << strategy;
  }
  const Result best = ostinato_run(
      {"partition", profile, "--devices", "2", "--strategy=best", "--output", folder_ / "out.csv"});
  EXPECT_NE(best.out.find("makespan          18 us"), std::string::npos) << best.out;
  EXPECT_EQ(read_text(folder_ / "out.csv").substr(0, 35), "id,device,start,end\n0,0,0,2000\n1,0,");
  const Result none =
      ostinato_run({"partition", profile, "--devices", "2", "--strategy=best", "--device-memory", "1B"});
  EXPECT_EQ(none.status, 3);  // an estimate is no proof
  EXPECT_NE(none.err.find("of memory on one device"), std::string::npos) << none.err;
}

TEST_F(PartitionGraphCommand, AProfileStillGoesToTheOtherHalf) {
  const std::string profile = folder_.write("profile.json", profile_text({1000, 1000}));
  EXPECT_EQ(ostinato_run({"partition", profile, "--devices", "2", "--output", folder_ / "p.toml"}).status, 0);
  EXPECT_NE(ostinato_run({"partition", "--strategy", "best", "--help"}).out.find("--schedule"),
            std::string::npos);
}

}  // namespace
}  // namespace ostinato::cli::test
