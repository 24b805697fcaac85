// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "search/files/printable.h"
#include "search/placement/quantity.h"
#include "search/show/show.h"

namespace ostinato {
namespace {

/// How a kind of block looks.
struct Look {
  const char* name;
  char letter;
  char filler;
  const char* color;  ///< ANSI: dark text on the colour of the kind
};

const Look& look(Kind kind) {
  static const std::array<Look, 5> looks = {{{"forward", 'F', '-', "\x1b[30;44m"},
                                             {"backward", 'B', '=', "\x1b[30;42m"},
                                             {"backward input", 'I', '~', "\x1b[30;46m"},
                                             {"backward weight", 'W', '.', "\x1b[30;43m"},
                                             {"other", 'O', ':', "\x1b[30;47m"}}};
  return looks[static_cast<std::size_t>(kind)];
}

constexpr const char* kPlain = "\x1b[0m";

/// One column of a line: a character, and the kind whose colour it has (-1: bubble).
struct Cell {
  char text = ' ';
  int kind = -1;
};

/// Columns in which times are drawn: column c covers [c, c + 1) * makespan / width.
class Scale {
 public:
  Scale(Nanoseconds makespan, int width) : makespan_(std::max<Nanoseconds>(makespan, 1)), width_(width) {}

  int width() const { return width_; }
  int column(Nanoseconds time) const {  ///< the nearest boundary between columns, within the width
    const __int128 nearest =
        (static_cast<__int128>(time) * width_ * 2 + makespan_) / (2 * static_cast<__int128>(makespan_));
    return static_cast<int>(std::clamp<__int128>(nearest, 0, width_));
  }
  Nanoseconds time(int column) const {
    return static_cast<Nanoseconds>(static_cast<__int128>(makespan_) * column / width_);
  }

 private:
  Nanoseconds makespan_;
  int width_;
};

/// A device's line, painted block by block.
class Line {
 public:
  explicit Line(const Scale& scale) : scale_(scale), cells_(scale.width()), shares_(scale.width()) {}

  void paint(const Block& block, int micro_batch, int chunk, Nanoseconds start) {
    const int first = scale_.column(start);
    const int end = scale_.column(start + block.time);
    add_shares(block, start);
    if (end - first < 2) return;  // too small to be drawn by itself
    const std::string label = fitting_label(block.kind, micro_batch, chunk, end - first);
    for (int c = first; c < end; ++c) {
      const std::size_t i = static_cast<std::size_t>(c - first);
      cells_[c] = {i < label.size() ? label[i] : look(block.kind).filler, static_cast<int>(block.kind)};
    }
  }

  /// Fills the columns that no block of its own covers with the kind that takes most of each.
  const std::vector<Cell>& finish() {
    for (int c = 0; c < scale_.width(); ++c) {
      if (cells_[c].kind >= 0) continue;
      const auto most = std::max_element(shares_[c].begin(), shares_[c].end());
      const Nanoseconds length = scale_.time(c + 1) - scale_.time(c);
      if (*most == 0 || 2 * total(c) < length) continue;
      const int kind = static_cast<int>(most - shares_[c].begin());
      cells_[c] = {look(static_cast<Kind>(kind)).letter, kind};
    }
    return cells_;
  }

 private:
  /// "F12b", without the chunk or the number where the room is too small; the last column stays a filler.
  static std::string fitting_label(Kind kind, int micro_batch, int chunk, int room) {
    const std::string letter(1, look(kind).letter);
    const std::string number = letter + std::to_string(micro_batch);
    const std::string full = chunk < 0 ? number : number + static_cast<char>('a' + chunk % 26);
    for (const std::string& label : {full, number}) {
      if (static_cast<int>(label.size()) <= room) return label;
    }
    return letter;
  }

  Nanoseconds total(int column) const {
    Nanoseconds sum = 0;
    for (const Nanoseconds share : shares_[column]) sum += share;
    return sum;
  }

  void add_shares(const Block& block, Nanoseconds start) {
    const Nanoseconds end = start + block.time;
    for (int c = std::max(0, scale_.column(start) - 1); c < scale_.width() && scale_.time(c) < end; ++c) {
      const Nanoseconds overlap = std::min(end, scale_.time(c + 1)) - std::max(start, scale_.time(c));
      if (overlap > 0) shares_[c][static_cast<std::size_t>(block.kind)] += overlap;
    }
  }

  const Scale& scale_;
  std::vector<Cell> cells_;
  std::vector<std::array<Nanoseconds, 5>> shares_;  ///< per column: time of each kind
};

std::string draw(const std::vector<Cell>& cells, bool color) {
  std::string text;
  int current = -1;
  for (const Cell& cell : cells) {
    if (color && cell.kind != current) {
      text += kPlain;
      if (cell.kind >= 0) text += look(static_cast<Kind>(cell.kind)).color;
      current = cell.kind;
    }
    text += cell.text;
  }
  if (current >= 0) text += kPlain;
  return text;
}

/// The largest 1, 2 or 5 times a power of ten that is at most a fifth of the time.
Nanoseconds tick_length(Nanoseconds makespan) {
  Nanoseconds tick = 1;
  for (Nanoseconds power = 1; power <= makespan / 5; power *= 10) {
    for (const Nanoseconds factor : {1, 2, 5}) {
      if (power * factor <= makespan / 5) tick = power * factor;
    }
    if (power > makespan / 50) break;
  }
  return tick;
}

/// "|0         |5 us      |10 us": a label at each tick.
std::string axis(const Scale& scale, Nanoseconds makespan) {
  std::string text(static_cast<std::size_t>(scale.width()), ' ');
  const Nanoseconds tick = tick_length(makespan);
  for (Nanoseconds time = 0; time <= makespan; time += tick) {
    const std::string label = fmt::format("|{}", format_time(time));
    const auto column = static_cast<std::size_t>(scale.column(time));
    if (column + label.size() <= text.size()) text.replace(column, label.size(), label);
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

std::string legend(const Placement& placement, bool chunks, bool color) {
  std::set<Kind> kinds;
  for (const Block& block : placement.blocks) kinds.insert(block.kind);
  std::string text;
  for (const Kind kind : kinds) {
    const Look& l = look(kind);
    const std::string sample = fmt::format("{}{}{}", l.letter, 0, std::string(2, l.filler));
    text += (color ? l.color + sample + kPlain : sample) + " " + l.name + "   ";
  }
  return text + "blank: bubble; the number is the micro-batch" +
         (chunks ? ", the letter after it the chunk" : "");
}

std::string share(Nanoseconds part, Nanoseconds whole) {
  if (whole <= 0) return "0%";
  return fmt::format("{}%",
                     static_cast<std::int64_t>((static_cast<__int128>(part) * 200 + whole) / (2 * whole)));
}

/// Time that each device works.
std::vector<Nanoseconds> busy_times(const Plan& plan, const Placement& placement) {
  std::vector<Nanoseconds> busy(placement.devices.size(), 0);
  for (const ScheduledBlock& s : plan.schedule) {
    for (const int d : placement.blocks[s.block].devices) busy[d] += placement.blocks[s.block].time;
  }
  return busy;
}

std::string head(const Plan& plan, const Placement& placement) {
  std::string text = fmt::format("{}: {} micro-batches on {} devices, makespan {}", printable(placement.name),
                                 plan.micro_batches, placement.devices.size(), format_time(plan.makespan));
  if (plan.optimal.makespan) {
    text += " (optimal, says the plan)";
  } else if (plan.lower_bound.makespan > 0) {
    text += fmt::format(" (bound {}, says the plan)", format_time(plan.lower_bound.makespan));
  }
  if (plan.steady_state.count > 0) {
    text += fmt::format(", period {} for {} micro-batch{}", format_time(plan.steady_state.period),
                        plan.steady_state.unroll, plan.steady_state.unroll == 1 ? "" : "es");
  }
  return text + "\n";
}

}  // namespace

std::vector<int> chunks_of_blocks(const Placement& placement) {
  std::vector<std::vector<std::string>> stages(placement.devices.size());
  std::vector<int> chunks;
  for (const Block& block : placement.blocks) {
    auto& list = stages[block.devices.front()];
    const auto found = std::find(list.begin(), list.end(), block.stage);
    chunks.push_back(static_cast<int>(found - list.begin()));
    if (found == list.end()) list.push_back(block.stage);
  }
  return chunks;
}

std::string show_text(const Plan& plan, const Placement& placement, const ShowOptions& options) {
  std::size_t names = 0;
  for (const Device& device : placement.devices) names = std::max(names, printable(device.name).size());
  const int margin = static_cast<int>(names) + 6;
  const Scale scale(plan.makespan, std::max(options.width, 40) - margin);
  const std::vector<int> chunks = chunks_of_blocks(placement);
  const bool several = std::any_of(chunks.begin(), chunks.end(), [](int c) { return c > 0; });
  std::vector<Line> lines(placement.devices.size(), Line(scale));
  for (const ScheduledBlock& s : plan.schedule) {
    const Block& block = placement.blocks[s.block];
    for (const int d : block.devices)
      lines[d].paint(block, s.micro_batch, several ? chunks[s.block] : -1, s.start);
  }
  const std::vector<Nanoseconds> busy = busy_times(plan, placement);
  std::string text = head(plan, placement);
  for (std::size_t d = 0; d < lines.size(); ++d) {
    text += fmt::format("{:<{}} {:>4} {}\n", printable(placement.devices[d].name), names,
                        share(busy[d], plan.makespan), draw(lines[d].finish(), options.color));
  }
  text += std::string(static_cast<std::size_t>(margin), ' ') + axis(scale, plan.makespan) + "\n";
  return text + legend(placement, several, options.color) + "; the share is of time at work\n";
}

}  // namespace ostinato
