// SPDX-License-Identifier: Apache-2.0
#pragma once
// All ranks of a program as threads, on devices whose streams a StreamExchange orders.

#include <c10/core/DeviceGuard.h>

#include <barrier>
#include <functional>
#include <thread>

#include "plugin/executor/executor.h"
#include "tests/plugin/executor/support/stream_channel.h"

namespace ostinato::testing {

struct AcceleratorRun {
  std::function<at::Device(int rank)> device_of;
  int steps = 3;
  ExecutorOptions options = {.timeout = std::chrono::seconds(60)};
  std::function<void()> on_step = [] {};             ///< when all ranks have ended it
  std::function<at::Device(int rank)> current = {};  ///< of the thread that calls run(); else its rank's
};

/// One to a line; "" for none.
inline std::string together(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word.empty() ? "" : word + "\n";
  return text;
}

/// What each rank threw, in words.
template <typename Module>
std::vector<std::string> run_all(const Program& program, StreamExchange& exchange,
                                 std::map<int, Module>& modules, const AcceleratorRun& settings) {
  const int ranks = static_cast<int>(program.ranks.size());
  std::vector<std::string> failures(ranks);
  std::barrier step_ended(ranks, [&]() noexcept { settings.on_step(); });
  const auto run = [&](int rank) {
    const at::Device device = settings.device_of(rank);
    const c10::DeviceGuard here(settings.current ? settings.current(rank) : device);
    StreamChannel channel(exchange, rank, device);
    try {
      Executor executor(program, rank, channel, settings.options);
      for (auto& [s, module] : modules) {
        if (program.stages[s].on(rank)) executor.set_stage(s, module);
      }
      for (int step = 0; step < settings.steps; ++step) {
        executor.run();
        step_ended.arrive_and_wait();
      }
    } catch (const std::exception& error) {
      failures[rank] = error.what();
      step_ended.arrive_and_drop();
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back(run, r);
  for (auto& thread : threads) thread.join();
  return failures;
}

}  // namespace ostinato::testing
