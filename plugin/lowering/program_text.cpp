// SPDX-License-Identifier: Apache-2.0
#include "plugin/lowering/program_text.h"

#include <cassert>

namespace ostinato {

std::string format_rank(const Program& program, int rank, TextForm form) {
  assert(rank >= 0 && rank < static_cast<int>(program.ranks.size()));
  std::string row;
  for (const Instruction& i : program.ranks[rank]) {
    if (form == TextForm::compute && !runs_layers(i.action)) continue;
    if (!row.empty()) row += ',';
    row += to_string(i);
  }
  return row;
}

std::string format_program(const Program& program, TextForm form) {
  std::string text;
  for (int r = 0; r < static_cast<int>(program.ranks.size()); ++r)
    text += format_rank(program, r, form) + '\n';
  return text;
}

}  // namespace ostinato
