// SPDX-License-Identifier: Apache-2.0
#include "search/show/measured.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string_view>

#include "search/files/file.h"
#include "search/files/json_values.h"

namespace ostinato {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // of a file, as `ostinato report` has it
constexpr std::int64_t kMostDevices = 1 << 16;

constexpr std::array<std::string_view, 11> kActions = {"F", "B",      "I",      "W",      "O",     "R",
                                                       "L", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};

struct RankTrace {
  std::string file, plan_sha256;
  int rank = 0, device = 0;
  Nanoseconds makespan = 0;
  std::vector<MeasuredInstruction> instructions;
};

MeasuredInstruction instruction_of(const Value& value, const std::string& file) {
  const Fields fields(value, file, "an instruction",
                      {"text", "action", "stage", "micro_batch", "peer", "peer_stage", "planned_start",
                       "planned_end", "start", "end", "lane"});
  MeasuredInstruction made;
  made.action = fields.text("action");
  if (std::find(kActions.begin(), kActions.end(), made.action) == kActions.end())
    fields.fail(fields.find("action"), "unknown instruction " + in_quotes(made.action));
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  if (fields.find("lane") != nullptr) made.lane = fields.text("lane");
  made.stage = static_cast<int>(fields.integer("stage", 0, most));
  made.micro_batch = static_cast<int>(fields.integer("micro_batch", 0, most));
  made.planned_start = fields.integer("planned_start", 0);
  made.planned_end = fields.integer("planned_end", made.planned_start);
  made.start = fields.integer("start", 0);
  made.end = fields.integer("end", made.start);
  return made;
}

RankTrace rank_of(const TraceText& file) {
  RankTrace trace;
  trace.file = file.name;
  const Value root =
      read_json(file.text, trace.file, "ostinato-trace/1", "instructions",
                [&](const Value& value) { trace.instructions.push_back(instruction_of(value, trace.file)); });
  const Fields fields(root, trace.file, "the trace",
                      {"format", "rank", "device", "step", "plan_sha256", "makespan", "instructions",
                       "step_seconds", "step_plans", "peak_memory", "peak_memory_of", "predicted",
                       "whole_step", "beside", "placement_sha256", "blocks"});
  trace.rank = static_cast<int>(fields.integer("rank", 0, std::numeric_limits<int>::max()));
  trace.device = static_cast<int>(fields.integer("device", 0, kMostDevices - 1));
  trace.plan_sha256 = fields.text("plan_sha256");
  trace.makespan = fields.integer("makespan", 0);
  std::stable_sort(trace.instructions.begin(), trace.instructions.end(),
                   [](const auto& a, const auto& b) { return a.start < b.start; });
  return trace;
}

/// A step read from its files one after another.
class StepReader {
 public:
  void add(const TraceText& file) {
    RankTrace trace = rank_of(file);
    if (step_.ranks++ == 0) {
      step_.plan_sha256 = trace.plan_sha256;
      step_.makespan = trace.makespan;
    } else if (trace.plan_sha256 != step_.plan_sha256 || trace.makespan != step_.makespan) {
      throw InputError(trace.file, 0,
                       "belongs to another plan than the files before it: the folder mixes several runs");
    }
    const auto place = by_device_.find(trace.device);
    if (place == by_device_.end() || trace.rank < place->second.rank)
      by_device_[trace.device] = std::move(trace);
  }

  MeasuredStep finish() {
    step_.devices.resize(by_device_.rbegin()->first + 1);
    for (auto& [device, trace] : by_device_) step_.devices[device] = std::move(trace.instructions);
    return std::move(step_);
  }

 private:
  MeasuredStep step_;
  std::map<int, RankTrace> by_device_;
};

}  // namespace

std::vector<fs::path> trace_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rank-") && name.ends_with(".json")) files.push_back(entry.path());
  }
  if (files.empty())
    throw InputError(folder.string(), 0,
                     "no rank-*.json here; a run writes them into the folder that \"trace\" in its ostinato "
                     "section names");
  std::sort(files.begin(), files.end());
  return files;
}

MeasuredStep read_trace(const fs::path& folder) {
  StepReader reader;
  for (const fs::path& path : trace_files(folder)) reader.add({path.string(), read_file(path, kMostBytes)});
  return reader.finish();
}

MeasuredStep parse_trace(const std::vector<TraceText>& files) {
  StepReader reader;
  for (const TraceText& file : files) reader.add(file);
  return reader.finish();
}

}  // namespace ostinato
