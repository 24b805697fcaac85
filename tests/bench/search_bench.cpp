// SPDX-License-Identifier: Apache-2.0
// How long the search takes, and how far its plans are from their bounds: counters `makespan`, `bound`,
// `period`.
//
//   search_bench --benchmark_filter=zero_bubble

#include <benchmark/benchmark.h>

#include <string>

#include "search/placement/shapes.h"
#include "search/repetend/repetend.h"
#include "search/search.h"

namespace ostinato {
namespace {

void run(benchmark::State& state, const Placement& placement, int micro_batches,
         Objective objective = Objective::makespan) {
  Plan plan;
  for (auto _ : state) {
    plan =
        search(placement, {.micro_batches = micro_batches, .objective = objective, .time_limit_seconds = 0});
    benchmark::DoNotOptimize(plan.makespan);
  }
  state.SetLabel(plan.search.method);
  const bool span = objective == Objective::span;
  state.counters[span ? "span" : "makespan"] = static_cast<double>(span ? plan.span : plan.makespan);
  state.counters["bound"] =
      static_cast<double>(span ? plan.lower_bound.objective : plan.lower_bound.makespan);
}

/// Tessel's shapes: forward 1, backward 3, shards 1 and 1. Room for so many forwards of a stage.
Placement tessel(const std::string& name, int devices, Bytes room = kUnlimited) {
  return shape(name, {.devices = devices,
                      .forward = 1,
                      .backward = 3,
                      .shard_forward = 1,
                      .shard_backward = 1,
                      .capacity = room});
}

/// F = I = W = 1.
Placement zero_bubble(const std::string& name, int devices, Bytes room) {
  return shape(name, {.devices = devices, .forward = 1, .backward = 1, .weight = 1, .capacity = room});
}

void repetend(benchmark::State& state, const std::string& name, int devices) {
  const Placement placement = tessel(name, devices);
  Repetend found;
  Nanoseconds bound = 0;
  for (auto _ : state) {
    const Instance in(placement);
    const Bounds bounds(in);
    found = find_repetend(in, bounds, 1, {});
    bound = bounds.period(1);
    benchmark::DoNotOptimize(found.period);
  }
  state.counters["period"] = static_cast<double>(found.period);
  state.counters["bound"] = static_cast<double>(bound);
}

/// The least memory at the least period, and whether both are proved.
void fewest_memory(benchmark::State& state, const std::string& name, int devices) {
  const Placement placement = tessel(name, devices);
  const Instance in(placement);
  const Repetend first = find_repetend(in, Bounds(in), 1, {});
  Repetend found;
  for (auto _ : state) {
    found = with_least_memory(in, first, {});
    benchmark::DoNotOptimize(found.start.data());
  }
  state.counters["period"] = static_cast<double>(found.period);
  state.counters["largest"] = static_cast<double>(memory_of(in, found).largest);
  state.counters["proved"] = found.period_proved && found.memory_proved;
}

/// Tessel's own code takes 3, 15, 88, 308 and 7 CPU seconds for the period of V, X, M, NN and K on 4 devices;
/// its quick variant needs room for 6, 7, 9 and 6, 7, 10 micro-batches for M and NN on 4, 5, 6 devices.
void add_repetends() {
  for (const std::string name : {"v", "x", "m", "nn", "k", "wave"}) {
    for (const int devices : {4, 8, 16, 32, 64, 256}) {
      benchmark::RegisterBenchmark(("repetend/" + name + "/" + std::to_string(devices)).c_str(),
                                   [=](benchmark::State& state) { repetend(state, name, devices); });
    }
    for (const int devices : {4, 5, 6, 8, 16}) {
      if (devices % 2 != 0 && (name == "x" || name == "k")) continue;
      benchmark::RegisterBenchmark(("fewest_memory/" + name + "/" + std::to_string(devices)).c_str(),
                                   [=](benchmark::State& state) { fewest_memory(state, name, devices); })
          ->Unit(benchmark::kMillisecond);
    }
  }
}

/// room: in tenths of a forward of one stage a device; 0: not limited.
void add_search(const std::string& name, int devices, int micro_batches, int room = 0) {
  const std::string title =
      "search/" + name + "/" + std::to_string(devices) + "/" + std::to_string(micro_batches) +
      (room > 0 ? "/room" + std::to_string(room / 10) + "." + std::to_string(room % 10) + "p" : "");
  const Bytes bytes = room > 0 ? static_cast<Bytes>(devices) * room / 10 : kUnlimited;
  auto* added = benchmark::RegisterBenchmark(title.c_str(), [=](benchmark::State& state) {
    run(state, tessel(name, devices, bytes), micro_batches);
  });
  added->Unit(benchmark::kMillisecond);
  if (devices >= 256) added->Iterations(1);
}

/// From the four devices of the paper to the thousand of a cluster.
void add_many_devices() {
  for (const char* name : {"v", "x", "m", "nn", "k", "looped", "wave"}) {
    for (const int devices : {4, 8, 16, 32, 64, 256}) {
      add_search(name, devices, 128);
      for (const int room : {10, 15, 20}) add_search(name, devices, 128, room);
    }
    for (const int micro_batches : {100, 10'000}) add_search(name, 4, micro_batches);
  }
  for (const char* name : {"v", "wave"}) add_search(name, 1024, 4096);
}

void add_all() {
  add_repetends();
  add_many_devices();
  for (const auto& [name, room] :
       {std::pair{"v", 4}, {"v", 3}, {"v", 2}, {"wave", 8}, {"wave", 6}, {"wave", 4}}) {
    benchmark::RegisterBenchmark(
        ("zero_bubble/" + std::string(name) + "/4/room" + std::to_string(room)).c_str(),
        [name = name, room = room](benchmark::State& state) { run(state, zero_bubble(name, 4, room), 8); })
        ->Unit(benchmark::kMillisecond);
  }
  for (const Objective objective : {Objective::makespan, Objective::span}) {
    for (const int room : {32, 64}) {
      const std::string title = std::string("zero_bubble/v/32/256/room") + std::to_string(room) +
                                (objective == Objective::span ? "/span" : "");
      benchmark::RegisterBenchmark(title.c_str(), [=](benchmark::State& state) {
        run(state, zero_bubble("v", 32, room), 256, objective);
      })->Unit(benchmark::kMillisecond);
    }
  }
}

const bool registered = [] {
  add_all();
  return true;
}();

}  // namespace
}  // namespace ostinato
