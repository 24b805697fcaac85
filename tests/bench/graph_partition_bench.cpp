// SPDX-License-Identifier: Apache-2.0
// Operator graphs: the authors' table, `best` beside its bound, and cost per vertex up to a million vertices.
//
//   graph_partition_bench                                    # everything; the table needs its authors' files
//   graph_partition_bench --benchmark_filter=CriticalPath    # a random graph of 10^4, 10^5 and 10^6 vertices
//
// The counters are in the time units of the files: `makespan`, `bound`, `gap_percent`, `published`.
// $OSTINATO_DATA or shared/data beside the source folder is where the files are looked for.
#include <benchmark/benchmark.h>

#include <string>

#include "search/graph/best.h"
#include "search/graph/bound.h"
#include "search/graph/csv.h"
#include "search/graph/simulate.h"
#include "search/graph/strategies.h"
#include "tests/search/graph/graph_small.h"

namespace ostinato::graph {
namespace {

struct PublishedRow {
  const char* file;
  double hash[3], batch_split[3], critical_path[3], mite[3], dfs[3],
      heft[3];  ///< FIFO, PCT, MSR; HEFT: its own order
};

// Means of five runs of the authors' program on 50 devices.
constexpr PublishedRow kPublished[] = {{"convolutional_network_graph.csv",
                                        {350.9, 324.1, 326.1},
                                        {227.7, 182.5, 191.9},
                                        {130.7, 96.5, 110.5},
                                        {171.4, 147.0, 148.1},
                                        {145.8, 122.9, 138.9},
                                        {192.2, 192.2, 192.2}},
                                       {"recurrent_network.csv",
                                        {4917.5, 4732.5, 4692.8},
                                        {3447.7, 3130.3, 3189.5},
                                        {2288.2, 2111.9, 2127.6},
                                        {2253.9, 2093.4, 2129.3},
                                        {2640.1, 2297.4, 2406.2},
                                        {3555.5, 3555.5, 3555.5}},
                                       {"dynamic_rnn_graph.csv",
                                        {5096.4, 4588.4, 4782.6},
                                        {3476.3, 2949.9, 3098.4},
                                        {2219.1, 1875.3, 1944.8},
                                        {2958.8, 2218.7, 2290.7},
                                        {2876.1, 2322.3, 2366.0},
                                        {3521.1, 3521.1, 3521.1}}};

const double* published(const PublishedRow& row, GraphStrategy strategy) {
  switch (strategy) {
    case GraphStrategy::hash:
      return row.hash;
    case GraphStrategy::batch_split:
      return row.batch_split;
    case GraphStrategy::critical_path:
      return row.critical_path;
    case GraphStrategy::mite:
      return row.mite;
    case GraphStrategy::dfs:
      return row.dfs;
    case GraphStrategy::heft:
      return row.heft;
  }
  return nullptr;
}

Ticks run(const GraphCosts& costs, GraphStrategy strategy, GraphSchedule schedule, std::uint64_t seed,
          bool program) {
  const GraphPartition p = partition(costs, strategy, {.seed = seed, .published_program = program});
  const GraphSends sends = program ? GraphSends::operations : GraphSends::immediate;
  return (strategy == GraphStrategy::heft ? simulate_ranked(costs, p.assignment, p.planned, sends, seed)
                                          : simulate(costs, p.assignment, schedule, sends, seed))
      .makespan;
}

/// One cell of the table: `program` as the authors' program has it (mean of ten orders), `paper` as the text
/// says.
void BM_Table(benchmark::State& state, const PublishedRow& row, GraphStrategy strategy,
              GraphSchedule schedule) {
  const std::filesystem::path folder = test::mayer_data();
  if (folder.empty()) return state.SkipWithError("the files of Mayer et al. are not here");
  const OperatorGraph graph = read_graph_csv(folder / row.file);
  const GraphDevices devices = read_devices_csv(folder / "devices-50.csv");
  const GraphCosts costs(graph, devices);
  double program = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed)
    program += to_units(run(costs, strategy, schedule, seed, true)) / 10;
  for (auto _ : state) benchmark::DoNotOptimize(run(costs, strategy, schedule, 0, false));
  state.counters["paper"] = to_units(run(costs, strategy, schedule, 0, false));
  state.counters["program"] = program;
  state.counters["published"] = published(row, strategy)[static_cast<int>(schedule)];
}

void BM_Best(benchmark::State& state, const PublishedRow& row) {
  const std::filesystem::path folder = test::mayer_data();
  if (folder.empty()) return state.SkipWithError("the files of Mayer et al. are not here");
  const OperatorGraph graph = read_graph_csv(folder / row.file);
  const GraphDevices devices = read_devices_csv(folder / "devices-50.csv");
  const GraphCosts costs(graph, devices);
  GraphBest best;
  for (auto _ : state) best = best_partition(costs, {.time_limit_seconds = 30});
  state.counters["makespan"] = to_units(best.solution.makespan);
  state.counters["bound"] = to_units(best.lower_bound);
  state.counters["gap_percent"] = 100 * (to_units(best.solution.makespan) / to_units(best.lower_bound) - 1);
  state.counters["cut"] = best.cut_by_limit;
}

/// Vertices with one to three inputs among the 1,000 before them, on 50 devices.
OperatorGraph long_graph(int vertices) {
  Random random(1);
  std::vector<GraphVertex> rows(vertices);
  for (int v = 0; v < vertices; ++v) {
    rows[v].id = v + 1;
    rows[v].tensor = 1 + random.below(100);
    rows[v].operations = 1 + random.below(100);
    for (int i = 1 + random.below(3); i > 0 && v > 0; --i)
      rows[v].after.push_back(v - random.below(std::min(v, 1000)));
  }
  return build_graph(std::move(rows), "random");
}

GraphDevices roomy_devices() {
  GraphDevices devices = test::random_devices(1, 50);
  for (GraphDevice& device : devices.devices) device.memory = 1'000'000'000;
  return devices;
}

void BM_Heft(benchmark::State& state) {
  const OperatorGraph graph = long_graph(static_cast<int>(state.range(0)));
  const GraphDevices devices = roomy_devices();
  const GraphCosts costs(graph, devices);
  for (auto _ : state) benchmark::DoNotOptimize(partition(costs, GraphStrategy::heft));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Heft)->Arg(10'000)->Arg(100'000)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

/// Levels at 10^4, paths at 10^5, the simple bound at 10^6.
void BM_Bound(benchmark::State& state) {
  const OperatorGraph graph = long_graph(static_cast<int>(state.range(0)));
  const GraphDevices devices = roomy_devices();
  const GraphCosts costs(graph, devices);
  for (auto _ : state) benchmark::DoNotOptimize(graph_lower_bound(costs));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Bound)->Arg(10'000)->Arg(100'000)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

void BM_CriticalPathPct(benchmark::State& state) {
  const OperatorGraph graph = long_graph(static_cast<int>(state.range(0)));
  const GraphDevices devices = roomy_devices();
  const GraphCosts costs(graph, devices);
  for (auto _ : state)
    benchmark::DoNotOptimize(run(costs, GraphStrategy::critical_path, GraphSchedule::pct, 0, false));
  state.SetItemsProcessed(state.iterations() * state.range(0));  // flat: the cost per vertex does not grow
}
BENCHMARK(BM_CriticalPathPct)->Arg(10'000)->Arg(100'000)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

void register_table() {
  for (const PublishedRow& row : kPublished) {
    benchmark::RegisterBenchmark((std::string("BM_Best/") + row.file).c_str(),
                                 [&row](benchmark::State& s) { BM_Best(s, row); })
        ->Unit(benchmark::kSecond)
        ->Iterations(1)
        ->UseRealTime();
    for (const GraphStrategy strategy : kGraphStrategies)
      for (const GraphSchedule schedule : {GraphSchedule::fifo, GraphSchedule::pct, GraphSchedule::msr})
        benchmark::RegisterBenchmark(
            (std::string("BM_Table/") + row.file + "/" + to_string(strategy) + "/" + to_string(schedule))
                .c_str(),
            [&row, strategy, schedule](benchmark::State& s) { BM_Table(s, row, strategy, schedule); })
            ->Unit(benchmark::kMillisecond)
            ->Iterations(1);
  }
}

}  // namespace
}  // namespace ostinato::graph

int main(int argc, char** argv) {
  ostinato::graph::register_table();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
