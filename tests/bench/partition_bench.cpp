// SPDX-License-Identifier: Apache-2.0
// What the partition of a profile costs, and what sharding an embedding and a head of a million words brings.
//
//   partition_bench --benchmark_filter=MillionWords

#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>

#include "search/named/references.h"
#include "search/partition/chain.h"
#include "search/partition/joint.h"
#include "search/partition/stages.h"

namespace ostinato {
namespace {

Spread spread(Nanoseconds time) { return {time, time, time, 3}; }

LayerCost layer(const std::string& name, Nanoseconds forward, Nanoseconds backward, Bytes kept,
                Bytes parameters) {
  LayerCost cost;
  cost.name = name;
  cost.forward = spread(forward);
  cost.backward = spread(backward);
  cost.kept = kept;
  cost.parameters = cost.gradients = 2 * parameters;  // half precision
  cost.optimizer_state = 12 * parameters;
  return cost;
}

void add(Profile& profile, LayerCost cost, Bytes input, Bytes output) {
  cost.index = static_cast<int>(profile.layers.size());
  cost.input_bytes = input;
  cost.output_bytes = output;
  profile.layers.push_back(std::move(cost));
}

/// A decoder of width 4096 on sequences of 2048 words, micro-batches of one, at 400 TFLOP/s and 4.8 TB/s. An
/// embedding reads and writes rows; its backward and the head's parameters pass through memory once.
Profile decoder(int blocks, std::int64_t words) {
  constexpr Bytes width = 4096, sequence = 2048, activation = 2 * width * sequence;
  constexpr std::int64_t flops_a_us = 400'000'000, bytes_a_us = 4'800'000;
  Profile profile;
  profile.model = "decoder";
  profile.completeness.complete = true;
  const Nanoseconds table = 1000 * (2 * 2 * words * width / bytes_a_us);
  const Nanoseconds block =
      1000 * ((24 * sequence * width * width + 4 * sequence * sequence * width) / flops_a_us);
  const Nanoseconds head = 1000 * (2 * sequence * width * words / flops_a_us);
  add(profile, layer("embedding", 20'000, table, 0, words * width), 8 * sequence, activation);
  for (int b = 0; b < blocks; ++b)
    add(profile, layer("block", block, 2 * block, 17 * activation, 12 * width * width), activation,
        activation);
  add(profile, layer("head", head, 2 * head, 4 * words * sequence, words * width), activation, 4);
  profile.layers.front().shardable = profile.layers.back().shardable = true;
  profile.transfers = {{0, 1, {5'000, 200'000'000'000}, 0}};
  return profile;
}

Profile random_chain(int layers) {
  std::mt19937 random(1);
  Profile profile;
  profile.completeness.complete = true;
  for (int l = 0; l < layers; ++l) {
    const auto time = static_cast<Nanoseconds>(100'000 + random() % 1'000'000);
    add(profile, layer("layer", time, 2 * time, static_cast<Bytes>(random() % 1000) << 20, 1 << 20), 1 << 20,
        1 << 20);
  }
  return profile;
}

void BM_Chain(benchmark::State& state, const PartitionOptions& options) {
  const Profile profile = random_chain(1000);
  StageCuts cuts;
  for (auto _ : state) cuts = cut_chain(profile, options);
  state.counters["busiest_us"] = static_cast<double>(cuts.busiest) / 1e3;
  state.counters["exact"] = cuts.exact();
  state.counters["in_flight"] = cuts.in_flight;
}

PartitionOptions on_64() { return {.devices = 64, .micro_batches = 256}; }

void BM_MillionWords(benchmark::State& state) {
  const int devices = static_cast<int>(state.range(0));
  const Profile profile = decoder(64, 1'000'000);
  JointOptions options;
  options.partition = {.devices = devices, .device_memory = Bytes{140} << 30};
  options.partition.micro_batches = options.search.micro_batches = 4 * devices;
  options.search.time_limit_seconds = 0;
  options.shardable = shardable_layers(profile);
  JointChoice choice;
  for (auto _ : state) choice = choose_plan(profile, options);
  const Candidate& best = choice.candidates[choice.winner];
  PartitionOptions one_chunk = options.partition;
  one_chunk.recompute = Recompute::needed;
  const StageCuts cuts = cut_chain(profile, one_chunk);
  Nanoseconds usual = 0;
  const Placement chain = place_stages(profile, one_chunk, cuts.stages);
  for (const Reference& r : references(chain, options.search.micro_batches, Objective::makespan)) {
    if (r.name == "1f1b") usual = r.makespan;
  }
  state.SetLabel(best.name);
  state.counters["plan_ms"] = static_cast<double>(best.value()) / 1e6;
  state.counters["bound_ms"] = static_cast<double>(best.plan->lower_bound.makespan) / 1e6;
  state.counters["1f1b_ms"] = static_cast<double>(usual) / 1e6;
  state.counters["times_as_long"] = static_cast<double>(usual) / static_cast<double>(best.value());
  // What the profile says: the busiest devices of the two.
  state.counters["profile_says"] =
      static_cast<double>(cuts.busiest) / static_cast<double>(best.cuts->busiest);
}
BENCHMARK(BM_MillionWords)->Arg(4)->Arg(8)->Arg(16)->Arg(32)->Unit(benchmark::kSecond)->Iterations(1);

void BM_Joint(benchmark::State& state) {
  const Profile profile = decoder(98, 50'000);
  JointOptions options;
  options.partition = {.devices = 64, .device_memory = Bytes{80} << 30};
  options.partition.micro_batches = options.search.micro_batches = static_cast<int>(state.range(0));
  options.search.time_limit_seconds = 0;
  options.shardable = shardable_layers(profile);
  JointChoice choice;
  for (auto _ : state) choice = choose_plan(profile, options);
  const Candidate& best = choice.candidates[choice.winner];
  state.SetLabel(best.name);
  state.counters["plan_ms"] = static_cast<double>(best.value()) / 1e6;
  state.counters["bound_ms"] = static_cast<double>(best.plan->lower_bound.makespan) / 1e6;
  state.counters["candidates"] = static_cast<double>(choice.candidates.size());
  state.counters["searched"] =
      static_cast<double>(std::count_if(choice.candidates.begin(), choice.candidates.end(),
                                        [](const Candidate& c) { return c.plan.has_value(); }));
}
BENCHMARK(BM_Joint)->Arg(128)->Arg(512)->Unit(benchmark::kSecond)->Iterations(1);

void register_chains() {
  PartitionOptions tight = on_64(), uneven = on_64(), recompute = on_64();
  tight.device_memory = recompute.device_memory = Bytes{200} << 30;
  recompute.recompute = Recompute::needed;
  uneven.cluster = alike(64, kUnlimited);
  uneven.cluster->kinds.push_back(uneven.cluster->kinds.front());
  uneven.cluster->kinds.back().speed = kUsualSpeed / 3;
  for (int d = 32; d < 64; ++d) uneven.cluster->devices[d].kind = 1;
  for (const auto& [name, options] : {std::pair{"BM_Chain/plain", on_64()},
                                      {"BM_Chain/memory", tight},
                                      {"BM_Chain/recompute", recompute},
                                      {"BM_Chain/two_kinds", uneven}}) {
    benchmark::RegisterBenchmark(name, [options = options](benchmark::State& s) {
      BM_Chain(s, options);
    })->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace ostinato

int main(int argc, char** argv) {
  ostinato::register_chains();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
