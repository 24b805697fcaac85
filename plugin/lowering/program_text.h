// SPDX-License-Identifier: Apache-2.0
#pragma once
// Programs as text, in the rows that torch.distributed.pipelining reads (_PipelineScheduleRuntime._load_csv):
// one row a rank, cells separated by commas, a cell is <stage><letters><micro-batch>.
//
//   TextForm::compute      0F0,0F1,0B0,0B1                         format="compute_only"
//   TextForm::transfers    0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,...  format="compute_comms"
//
// The stage of a transfer is the one on the row's own rank. The text names no peers: with several consumers
// on several ranks a stage's sends look alike, and torch, which knows chains only, cannot run such a program.

#include <string>

#include "plugin/lowering/program.h"

namespace ostinato {

enum class TextForm { compute, transfers };

/// All ranks, one row each, every row ended by a newline.
std::string format_program(const Program& program, TextForm form);

/// One rank's row, without a newline. Asserts that the rank exists.
std::string format_rank(const Program& program, int rank, TextForm form);

}  // namespace ostinato
