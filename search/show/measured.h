// SPDX-License-Identifier: Apache-2.0
#pragma once
// A measured step, as a run leaves it in a folder (`ostinato-trace/1`, a file a rank), to lay over its plan.
//
//   const MeasuredStep step = read_trace("out/trace");
//   write_file("plan.html", show_html({{"plan.json", plan, placement}}, step));

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "search/placement/placement.h"

namespace ostinato {

/// An instruction that ran; times since the step began.
struct MeasuredInstruction {
  std::string action;  ///< "F", "B", "I", "W", "O", "R", "L", "SEND_F", "RECV_F", "SEND_B" or "RECV_B"
  int stage = 0;
  int micro_batch = 0;
  Nanoseconds planned_start = 0, planned_end = 0;
  Nanoseconds start = 0, end = 0;
  std::string lane = {};  ///< of its device; empty: the device itself
};

struct MeasuredStep {
  std::string plan_sha256;   ///< of the plan's file; empty where the plan came from none
  Nanoseconds makespan = 0;  ///< the plan's
  int ranks = 0;             ///< files that were read
  std::vector<std::vector<MeasuredInstruction>> devices;  ///< of the lowest rank that runs on each device
};

struct TraceText {
  std::string name;  ///< of the file, for messages
  std::string_view text;
};

/// By name. Throws InputError where the folder holds no trace.
std::vector<std::filesystem::path> trace_files(const std::filesystem::path& folder);

/// Throws InputError with file and line where the folder holds no trace, a rank's file is wrong, or the files
/// are of several plans.
MeasuredStep read_trace(const std::filesystem::path& folder);
/// The same from the texts of the files, at least one.
MeasuredStep parse_trace(const std::vector<TraceText>& files);

}  // namespace ostinato
