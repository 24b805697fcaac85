// SPDX-License-Identifier: Apache-2.0
#include "search/placement/placement_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "search/files/counted.h"
#include "search/files/value.h"
#include "search/placement/lanes.h"

namespace ostinato {
namespace {

__extension__ using Wide = __int128;

class Checker {
 public:
  Checker(const Placement& placement, const PlacementLines& lines, const std::string& file)
      : placement_(placement), lines_(lines), file_(file) {}

  void run() const {
    if (placement_.blocks.empty())
      throw InputError(file_, 0, "no [[blocks]]: a placement needs at least one");
    check_inputs();
    check_cycle();
    check_time();
    check_memory();
    check_lanes();
    if (!placement_.stages.empty()) {
      check_stage_names();
      check_layers();
    }
  }

 private:
  [[noreturn]] void fail(const std::vector<int>& lines, int index, const std::string& message) const {
    throw InputError(file_, lines.empty() ? 0 : lines[index], message);
  }

  int blocks() const { return static_cast<int>(placement_.blocks.size()); }
  const Block& block(int b) const { return placement_.blocks[b]; }

  void check_inputs() const {
    std::unordered_set<int> seen;
    for (int b = 0; b < blocks(); ++b) {
      seen.clear();
      for (const Dependency& input : block(b).after) {
        if (seen.insert(input.block).second) continue;
        fail(lines_.blocks, b,
             "block " + in_quotes(block(b).name) + " names input " + in_quotes(block(input.block).name) +
                 " twice");
      }
    }
  }

  void check_cycle() const {
    const std::vector<int> cycle = find_cycle();
    if (cycle.empty()) return;
    constexpr std::size_t shown = 8;
    std::string names = in_quotes(block(cycle[0]).name);
    for (std::size_t i = 1; i < cycle.size() && i < shown; ++i)
      names += " after " + in_quotes(block(cycle[i]).name);
    if (cycle.size() > shown) names += " after ... (" + std::to_string(cycle.size()) + " blocks)";
    fail(lines_.blocks, cycle[0],
         "blocks wait for each other: " + names + " after " + in_quotes(block(cycle[0]).name));
  }

  /// Only what its device computes meanwhile has memory (lanes.h).
  void check_lanes() const {
    for (int b = 0; b < blocks(); ++b) {
      if (block(b).memory == 0 && block(b).workspace == 0) continue;
      const std::string reason = no_memory_for(placement_, block(b));
      if (!reason.empty()) fail(lines_.blocks, b, reason);
    }
  }

  /// Blocks each of which comes after the next, and the last after the first; empty where there is no cycle.
  std::vector<int> find_cycle() const {
    if (topological_order(placement_).size() == placement_.blocks.size()) return {};
    // Depth-first over the inputs with a stack of our own: an input on the current path closes a cycle.
    enum : char { unseen, on_path, done };
    std::vector<char> state(placement_.blocks.size(), unseen);
    std::vector<std::pair<int, std::size_t>> path;  // block, next input to look at
    for (int first = 0; first < blocks(); ++first) {
      if (state[first] != unseen) continue;
      path.emplace_back(first, 0);
      state[first] = on_path;
      while (!path.empty()) {
        auto& [b, next] = path.back();
        if (next == block(b).after.size()) {
          state[b] = done;
          path.pop_back();
          continue;
        }
        const int input = block(b).after[next++].block;
        if (state[input] == on_path) return tail_from(path, input);
        if (state[input] == unseen) {
          state[input] = on_path;
          path.emplace_back(input, 0);
        }
      }
    }
    return {};
  }

  static std::vector<int> tail_from(const std::vector<std::pair<int, std::size_t>>& path, int first) {
    std::vector<int> cycle;
    for (auto step = path.rbegin(); cycle.empty() || cycle.back() != first; ++step)
      cycle.push_back(step->first);
    std::reverse(cycle.begin(), cycle.end());
    return cycle;
  }

  void check_time() const {
    Wide total = 0;
    for (int b = 0; b < blocks(); ++b) {
      total += block(b).time;
      for (const Dependency& input : block(b).after) total += placement_.transfer(input, b);
      if (total > Fields::kLargest)
        fail(lines_.blocks, b, "the times of one micro-batch together exceed 2^63 nanoseconds");
    }
  }

  void check_memory() const {
    Wide total = 0;
    for (const Device& device : placement_.devices) total += device.static_memory;
    for (int b = 0; b < blocks(); ++b) {
      total += std::max(block(b).memory, -block(b).memory);
      total += block(b).workspace;
      if (total > Fields::kLargest)
        fail(lines_.blocks, b, "the memory of all blocks together exceeds 2^63 bytes");
    }
  }

  void check_stage_names() const {
    std::unordered_map<std::string_view, int> unused;
    for (std::size_t s = 0; s < placement_.stages.size(); ++s) {
      unused.emplace(placement_.stages[s].name, static_cast<int>(s));
    }
    std::unordered_set<std::string_view> known;
    for (const Stage& stage : placement_.stages) known.insert(stage.name);
    for (int b = 0; b < blocks(); ++b) {
      unused.erase(block(b).stage);
      if (known.contains(block(b).stage)) continue;
      fail(lines_.blocks, b,
           "stage " + in_quotes(block(b).stage) + " of block " + in_quotes(block(b).name) +
               " is not in [[stages]]" + did_you_mean(block(b).stage, known));
    }
    for (std::size_t s = 0; s < placement_.stages.size(); ++s) {
      if (!unused.contains(placement_.stages[s].name)) continue;
      fail(lines_.stages, static_cast<int>(s), "no block runs stage " + in_quotes(placement_.stages[s].name));
    }
  }

  void check_layers() const {
    struct RunOf {
      LayerRun run;
      int stage;
    };
    std::vector<RunOf> runs;
    for (std::size_t s = 0; s < placement_.stages.size(); ++s)
      for (const LayerRun& run : placement_.stages[s].layers.runs())
        runs.push_back({run, static_cast<int>(s)});
    std::stable_sort(runs.begin(), runs.end(), [](const RunOf& a, const RunOf& b) {
      return std::pair{a.run.first, a.run.end} < std::pair{b.run.first, b.run.end};
    });
    int covered = 0;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const auto& [run, s] = runs[i];
      if (i > 0 && run == runs[i - 1].run) continue;  // a copy of the model in the other direction
      const std::string stage = "stage " + in_quotes(placement_.stages[s].name);
      if (run.first > covered) {
        fail(lines_.stages, s,
             stage + " starts at layer " + std::to_string(run.first) + ", but no stage runs layer " +
                 std::to_string(covered));
      }
      if (run.first < covered) {
        fail(lines_.stages, s,
             stage + " overlaps stage " + in_quotes(placement_.stages[runs[i - 1].stage].name) +
                 " partly, from layer " + std::to_string(run.first));
      }
      covered = run.end;
    }
  }

  const Placement& placement_;
  const PlacementLines& lines_;
  const std::string& file_;
};

constexpr Wide kLongest = Wide{1} << 60;
constexpr Wide kLargest = Wide{1} << 62;

/// Refuses n * each + once >= limit.
void check_total(Wide each, Wide once, int n, Wide limit, const char* what, const char* field,
                 const std::string& file) {
  if (each * n + once < limit) return;
  const Wide most = once < limit && each > 0 ? (limit - 1 - once) / each : 0;
  const std::string remedy = most > 0 ? fmt::format("at most {} can be planned",
                                                    counted(static_cast<std::int64_t>(most), "micro-batch"))
                                      : fmt::format("check '{}' and the largest values", field);
  throw InputError(file, 0,
                   fmt::format("{} reach{} {}, more than can be planned; {}", counted(n, "micro-batch"),
                               n == 1 ? "es" : "", what, remedy));
}

}  // namespace

void check_totals(const Placement& placement, int n, const std::string& file) {
  Wide time = 0, memory = 0, once = 0;
  const auto magnitude = [](Bytes bytes) { return bytes < 0 ? -static_cast<Wide>(bytes) : bytes; };
  for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
    const Block& block = placement.blocks[b];
    time += block.time;
    memory += magnitude(block.memory) + block.workspace;
    for (const Dependency& input : block.after) time += placement.transfer(input, static_cast<int>(b));
  }
  for (const Device& device : placement.devices) once = std::max<Wide>(once, device.static_memory);
  check_total(time, 0, n, kLongest, "2^60 nanoseconds of blocks and transfers", "time_unit", file);
  check_total(memory, once, n, kLargest, "2^62 bytes of memory", "memory_unit", file);
}

void check_placement(const Placement& placement, const PlacementLines& lines, const std::string& file) {
  Checker(placement, lines, file).run();
}

}  // namespace ostinato
