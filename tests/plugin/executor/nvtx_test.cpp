// SPDX-License-Identifier: Apache-2.0
// Every instruction of a step is a range that an NVTX tool sees.

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "plugin/executor/executor.h"
#include "plugin/lowering/lower.h"
#include "tests/plugin/executor/support/layers.h"
#include "tests/plugin/executor/support/thread_channel.h"
#include "tests/support/nvtx_tool.h"
#include "tests/support/plans.h"

namespace ostinato {
namespace {

TEST(Nvtx, EveryInstructionIsARange) {
  const Placement placement = testing::chain({0, 1});
  const Program program = lower(testing::backward_first(placement, 3, 2), placement);
  auto layers = testing::make_layers(program);
  testing::ranges.clear();
  testing::Exchange exchange;
  const auto run = [&](int rank) {
    testing::ThreadChannel channel(exchange, rank, testing::Blocking::no);
    Executor executor(program, rank, channel, {.timeout = std::chrono::seconds(60)});
    executor.set_stage(rank, layers.at(rank));
    executor.run();
  };
  std::thread other([&] { run(0); });
  run(1);
  other.join();

  std::vector<std::string> wanted;
  for (const auto& list : program.ranks) {
    for (const Instruction& i : list) {
      wanted.push_back(program.stages[i.stage].name + " " + to_string(i.action) + " " +
                       std::to_string(i.micro_batch));
    }
  }
  std::vector<std::string> seen = testing::ranges.closed;
  std::sort(wanted.begin(), wanted.end());
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, wanted);
}

}  // namespace
}  // namespace ostinato
