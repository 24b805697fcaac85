// SPDX-License-Identifier: Apache-2.0
#include "plugin/lowering/program_text.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <charconv>
#include <optional>

#include "search/files/error.h"

namespace ostinato {
namespace {

constexpr std::array kActions{Action::forward,         Action::backward,        Action::backward_input,
                              Action::backward_weight, Action::send_forward,    Action::receive_forward,
                              Action::send_backward,   Action::receive_backward};

/// Takes a number off the front of `text`.
std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return std::nullopt;
  text.remove_prefix(end - text.data());
  return value;
}

std::optional<Instruction> parse_cell(std::string_view cell) {
  const auto stage = take_number(cell);
  const std::size_t letters = cell.find_first_of("0123456789");
  if (!stage || letters == std::string_view::npos) return std::nullopt;
  const std::string_view name = cell.substr(0, letters);
  cell.remove_prefix(letters);
  const auto micro_batch = take_number(cell);
  if (!micro_batch || !cell.empty()) return std::nullopt;
  for (const Action action : kActions) {
    if (name == to_string(action)) {
      return Instruction{.action = action, .stage = *stage, .micro_batch = *micro_batch};
    }
  }
  return std::nullopt;
}

std::vector<Instruction> parse_row(std::string_view row, int number) {
  std::vector<Instruction> instructions;
  while (!row.empty()) {
    const std::string_view cell = row.substr(0, row.find(','));
    const auto instruction = parse_cell(cell);
    if (!instruction) {
      throw InputError("program", number,
                       "'" + std::string(cell) +
                           "' is no instruction; expected <stage><F|B|I|W|SEND_F|RECV_F|"
                           "SEND_B|RECV_B><micro-batch>, as 0F3");
    }
    instructions.push_back(*instruction);
    row.remove_prefix(std::min(cell.size() + 1, row.size()));
  }
  return instructions;
}

}  // namespace

std::string format_rank(const Program& program, int rank, TextForm form) {
  assert(rank >= 0 && rank < static_cast<int>(program.ranks.size()));
  std::string row;
  for (const Instruction& i : program.ranks[rank]) {
    if (form == TextForm::compute && !is_compute(i.action)) continue;
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

std::vector<std::vector<Instruction>> parse_program_text(std::string_view text) {
  std::vector<std::vector<Instruction>> ranks;
  while (!text.empty()) {
    const std::string_view row = text.substr(0, text.find('\n'));
    ranks.push_back(parse_row(row, static_cast<int>(ranks.size()) + 1));
    text.remove_prefix(std::min(row.size() + 1, text.size()));
  }
  return ranks;
}

}  // namespace ostinato
