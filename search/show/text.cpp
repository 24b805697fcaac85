// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <vector>

#include "search/files/wrapped.h"
#include "search/placement/lanes.h"
#include "search/placement/quantity.h"
#include "search/show/drawing.h"
#include "search/show/show.h"
#include "search/simulate/shared_cores.h"
#include "search/simulate/simulate.h"

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
  static const std::array<Look, kKinds> looks = {{{"forward", 'F', '-', "\x1b[30;44m"},
                                                  {"backward", 'B', '=', "\x1b[30;42m"},
                                                  {"backward input", 'I', '~', "\x1b[30;46m"},
                                                  {"backward weight", 'W', '.', "\x1b[30;43m"},
                                                  {"offload", 'O', '>', "\x1b[30;45m"},
                                                  {"load", 'L', '<', "\x1b[30;41m"},
                                                  {"other", 'X', ':', "\x1b[30;47m"}}};
  return looks[static_cast<std::size_t>(kind)];
}

constexpr const char* kPlain = "\x1b[0m";

/// One column of a line: a character, and the kind that gives its colour (-1: bubble).
struct Cell {
  char text = ' ';
  int kind = -1;
};

/// Columns in which times are drawn: column c covers [c, c + 1) * (to - from) / width, from `from` on.
class Scale {
 public:
  Scale(Nanoseconds from, Nanoseconds to, int width)
      : from_(from), length_(std::max<Nanoseconds>(to - from, 1)), width_(width) {}

  int width() const { return width_; }
  Nanoseconds from() const { return from_; }
  Nanoseconds to() const { return from_ + length_; }
  int column(Nanoseconds time) const {  ///< the nearest boundary between columns, within the width
    const __int128 doubled = static_cast<__int128>(time - from_) * width_ * 2;
    if (doubled <= 0) return 0;
    const __int128 nearest = (doubled + length_) / (2 * static_cast<__int128>(length_));
    return static_cast<int>(std::min<__int128>(nearest, width_));
  }
  Nanoseconds time(int column) const {
    return from_ + static_cast<Nanoseconds>(static_cast<__int128>(length_) * column / width_);
  }

 private:
  Nanoseconds from_, length_;
  int width_;
};

/// A device's line, painted block by block.
class Line {
 public:
  explicit Line(const Scale& scale) : scale_(scale), cells_(scale.width()), shares_(scale.width()) {}

  /// Time at work within the scale.
  Nanoseconds busy() const { return busy_; }

  void paint(const Block& block, int micro_batch, int chunk, Nanoseconds start) {
    const Nanoseconds seen = std::min(start + block.time, scale_.to()) - std::max(start, scale_.from());
    if (seen <= 0) return;
    busy_ += seen;
    const int first = scale_.column(start);
    const int end = scale_.column(start + block.time);
    add_shares(block, start);
    if (end - first < 2) return;  // too small to be drawn by itself
    const std::string label = fitting_label(block.kind, micro_batch, chunk, end - first);
    for (int c = first; c < end; ++c) {
      const std::size_t i = c - first;
      cells_[c] = {i < label.size() ? label[i] : look(block.kind).filler, static_cast<int>(block.kind)};
    }
  }

  /// Fills the columns that no single block covers. Each kind, and the bubble, gets its share of the time in
  /// columns: what a column owes to one is carried over to the next columns that it is in.
  const std::vector<Cell>& finish() {
    std::array<Nanoseconds, kKinds + 1> owed{};  // the last: bubble
    for (int c = 0; c < scale_.width(); ++c) {
      if (cells_[c].kind >= 0) {
        owed.fill(0);
        continue;
      }
      const auto taken = pick(c, owed);
      if (taken == kBubble) continue;
      cells_[c] = {look(static_cast<Kind>(taken)).letter, static_cast<int>(taken)};
    }
    return cells_;
  }

 private:
  /// "F12b", without the chunk or the number where the room is too small; the last column stays a filler.
  static std::string fitting_label(Kind kind, int micro_batch, int chunk, int room) {
    std::string letter(1, look(kind).letter);
    const std::string number = letter + std::to_string(micro_batch);
    const std::string full = chunk < 0 ? number : number + static_cast<char>('a' + chunk % 26);
    for (const std::string& label : {full, number}) {
      if (static_cast<int>(label.size()) <= room) return label;
    }
    return letter;
  }

  static constexpr std::size_t kBubble = kKinds;

  /// What the column shows: of all that is in it the one that it owes most. Pays for that.
  std::size_t pick(int column, std::array<Nanoseconds, kKinds + 1>& owed) const {
    const Nanoseconds length = scale_.time(column + 1) - scale_.time(column);
    std::array<Nanoseconds, kKinds + 1> inside{};
    Nanoseconds idle = length;
    for (std::size_t k = 0; k < kBubble; ++k) {
      inside[k] = shares_[column][k];
      idle -= inside[k];
    }
    inside[kBubble] = std::max<Nanoseconds>(idle, 0);
    std::size_t taken = inside.size();
    for (std::size_t k = 0; k < inside.size(); ++k) {
      owed[k] += inside[k];
      if (inside[k] > 0 && (taken == inside.size() || owed[k] > owed[taken])) taken = k;
    }
    if (taken == inside.size()) return kBubble;  // a column of no time
    owed[taken] -= length;
    return taken;
  }

  void add_shares(const Block& block, Nanoseconds start) {
    const Nanoseconds end = start + block.time;
    for (int c = std::max(0, scale_.column(start) - 1); c < scale_.width() && scale_.time(c) < end; ++c) {
      const Nanoseconds overlap = std::min(end, scale_.time(c + 1)) - std::max(start, scale_.time(c));
      if (overlap > 0) shares_[c][static_cast<std::size_t>(block.kind)] += overlap;
    }
  }

  const Scale& scale_;
  Nanoseconds busy_ = 0;
  std::vector<Cell> cells_;
  std::vector<std::array<Nanoseconds, kKinds>> shares_;  ///< per column: time of each kind
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

/// "|0         |5 us      |10 us": a label at each tick that has room.
std::string axis(const Scale& scale) {
  std::string text(scale.width(), ' ');
  const Nanoseconds tick = tick_length(scale.to() - scale.from());
  std::size_t free = 0;  // behind the last label
  for (Nanoseconds time = (scale.from() + tick - 1) / tick * tick; time <= scale.to(); time += tick) {
    const std::string label = fmt::format("|{}", tick_label(time, tick));
    const std::size_t column = scale.column(time);
    if (column < free || column + label.size() > text.size()) continue;
    text.replace(column, label.size(), label);
    free = column + label.size();
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
  return text + "blank: bubble\nThe number is the micro-batch" +
         (chunks ? ", the letter after it the chunk" : "");
}

std::string share(Nanoseconds part, Nanoseconds whole) {
  if (whole <= 0) return "0%";
  return fmt::format("{}%",
                     static_cast<std::int64_t>((static_cast<__int128>(part) * 200 + whole) / (2 * whole)));
}

}  // namespace

std::string show_text(const Plan& plan, const Placement& placement, const ShowOptions& options) {
  std::vector<int> devices = options.devices;
  if (devices.empty()) devices = with_lanes_beside(placement);
  const auto columns = static_cast<std::size_t>(std::max(options.width, 40));
  const auto name = [&](int d) { return shortened(placement.devices[d].name, columns / 3); };
  std::size_t names = 0;
  for (const int d : devices) names = std::max(names, letters_of(name(d)));
  const std::size_t margin = names + 6;
  const Scale scale(options.from, options.to < 0 ? plan.makespan : options.to,
                    static_cast<int>(columns - margin));
  const std::vector<int> chunks = chunks_of_blocks(placement);
  const bool several = std::any_of(chunks.begin(), chunks.end(), [](int c) { return c > 0; });
  std::vector<Line> lines(placement.devices.size(), Line(scale));
  for (const ScheduledBlock& s : plan.schedule) {
    const Block& block = placement.blocks[s.block];
    for (const int d : block.devices)
      lines[d].paint(block, s.micro_batch, several ? chunks[s.block] : -1, s.start);
  }
  std::string text = wrapped(headline(plan, placement) + "\n", 2, columns);
  if (!placement.hosts.empty())
    text += wrapped(fmt::format("  on shared cores {}\n",
                                shared_cores_text(predicted_makespan(plan, placement), placement)),
                    4, columns);
  for (const int d : devices) {
    text += fmt::format("{}{} {:>4} {}\n", name(d), std::string(names - letters_of(name(d)), ' '),
                        share(lines[d].busy(), scale.to() - scale.from()),
                        draw(lines[d].finish(), options.color));
  }
  text += std::string(margin, ' ') + axis(scale) + "\n";
  return text +
         wrapped(legend(placement, several, options.color) + "; the percentage is busy time\n", 0, columns);
}

}  // namespace ostinato
