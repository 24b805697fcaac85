// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "search/files/printable.h"
#include "search/placement/lanes.h"
#include "search/placement/quantity.h"
#include "search/show/drawing.h"
#include "search/show/show.h"

namespace ostinato {
namespace {

// Lengths are points of the image; a tenth of one is the smallest drawn.
constexpr int kWidth = 960;
constexpr int kTop = 44;         // above the first row: the headline
constexpr int kRow = 34;         // a device
constexpr int kBar = 28;         // a block
constexpr int kBelow = 62;       // axis and legend
constexpr int kLetter = 7;       // a letter of 12 points, on average
constexpr int kSmallLetter = 6;  // a letter of 10 points
constexpr int kRight = 12;
constexpr std::size_t kLongestName = 24;

/// Colours by class, for light and dark surroundings. No variables: not every program that draws SVG has
/// them.
constexpr std::string_view kStyle = R"(<style>
text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1d2126; }
.head { font-weight: 600; font-size: 13px; } .soft { fill: #5b6572; }
.label { font-size: 10px; text-anchor: middle; fill: #10151b; }
.paper { fill: #fdfdfc; } .row { fill: #eceef1; } .line { fill: #cfd4db; }
.forward { fill: #7db0ec; } .backward { fill: #7cc88b; } .input { fill: #5cc4c4; }
.weight { fill: #e6b854; } .offload { fill: #dd9ac6; } .load { fill: #e59a88; } .other { fill: #b7a4d6; }
.tone1 { fill-opacity: 0.64; } .tone2 { fill-opacity: 0.34; }
@media (prefers-color-scheme: dark) {
text { fill: #e4e7eb; } .soft { fill: #a2acb9; } .label { fill: #ffffff; }
.paper { fill: #14171b; } .row { fill: #20262d; } .line { fill: #3a424c; }
.forward { fill: #2f69b3; } .backward { fill: #2f7d43; } .input { fill: #217f7f; }
.weight { fill: #96691a; } .offload { fill: #9b4a80; } .load { fill: #a84e3b; } .other { fill: #6f5a97; }
}
</style>
)";

struct Look {
  const char* name;    ///< in the legend
  const char* style;   ///< class in kStyle
  const char* letter;  ///< before the number of the micro-batch
};

const Look& look(Kind kind) {
  static const std::array<Look, kKinds> looks = {{{"forward", "forward", "F"},
                                                  {"backward", "backward", "B"},
                                                  {"backward, inputs", "input", "I"},
                                                  {"backward, weights", "weight", "W"},
                                                  {"offload", "offload", "O"},
                                                  {"load", "load", "L"},
                                                  {"other", "other", ""}}};
  return looks[static_cast<std::size_t>(kind)];
}

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : printable(text)) {
    if (c == '&') {
      safe += "&amp;";
    } else if (c == '<') {
      safe += "&lt;";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string text_at(int x, int y, std::string_view style, std::string_view text) {
  return fmt::format("<text x=\"{}\" y=\"{}\" class=\"{}\">{}</text>\n", x, y, style, escaped(text));
}

/// The image, from its top to its end.
class Picture {
 public:
  Picture(const Plan& plan, const Placement& placement) : plan_(plan), placement_(placement) {
    std::size_t longest = 0;
    for (const Device& device : placement.devices)
      longest = std::max(longest, letters_of(shortened(device.name, kLongestName)));
    left_ = 20 + kLetter * static_cast<int>(longest);
    bottom_ = kTop + kRow * static_cast<int>(placement.devices.size());
    chunks_ = chunks_of_blocks(placement);
    rows_ = rows_of(placement);
    has_letters_ = letters_fit();
  }

  std::string draw() {
    const int height = bottom_ + kBelow;
    text_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
        "role=\"img\">\n<title>{2}</title>\n{3}",
        kWidth, height, escaped(headline(plan_, placement_)), kStyle);
    text_ += fmt::format("<rect width=\"{}\" height=\"{}\" rx=\"6\" class=\"paper\"/>\n", kWidth, height);
    text_ += text_at(12, 26, "head", headline(plan_, placement_));
    add_rows();
    add_axis();
    add_blocks();
    add_legend();
    return text_ + "</svg>\n";
  }

 private:
  /// Tenths of points from the left edge, to the nearest.
  int tenths(Nanoseconds time) const {
    const __int128 makespan = std::max<Nanoseconds>(plan_.makespan, 1);
    const __int128 width = 10 * (kWidth - left_ - kRight);
    return 10 * left_ + static_cast<int>((2 * time * width + makespan) / (2 * makespan));
  }

  static bool fits(const std::string& label, int width) {
    return 10 * kSmallLetter * static_cast<int>(label.size()) + 20 <= width;
  }

  /// Whether every block that has room for its number also has room for a letter before it: in one picture
  /// all labels are alike.
  bool letters_fit() const {
    const std::string number = std::to_string(plan_.micro_batches - 1);
    return std::all_of(placement_.blocks.begin(), placement_.blocks.end(), [&](const Block& block) {
      const int width = width_of(0, tenths(block.time) - tenths(0));
      return !fits(number, width) || fits(look(block.kind).letter + number, width);
    });
  }

  /// With a gap between neighbours, where there is room.
  static int width_of(int begin, int end) { return end - begin - (end - begin > 30 ? 7 : 0); }

  int row(std::size_t device) const { return kTop + kRow * rows_[device]; }

  void add_rows() {
    for (std::size_t d = 0; d < placement_.devices.size(); ++d) {
      text_ +=
          text_at(12, row(d) + kBar / 2 + 4, "name", shortened(placement_.devices[d].name, kLongestName));
      text_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"row\"/>\n", left_,
                           row(d), kWidth - left_ - kRight, kBar);
    }
  }

  void add_axis() {
    const Nanoseconds tick = tick_length(plan_.makespan);
    for (Nanoseconds time = 0; time <= plan_.makespan; time += tick) {
      const int x = tenths(time) / 10;
      text_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"1\" height=\"{}\" class=\"line\"/>\n", x, kTop,
                           bottom_ - kTop + 4);
      const std::string label = format_time(time);
      if (x + kLetter * static_cast<int>(label.size()) > kWidth) break;
      text_ += text_at(x, bottom_ + 18, "soft", label);
    }
  }

  void add_blocks() {
    for (const ScheduledBlock& step : plan_.schedule) {
      const Block& block = placement_.blocks[step.block];
      const int begin = tenths(step.start), end = tenths(step.start + block.time);
      if (begin == end) continue;
      for (const int d : block.devices) add_block(step, begin, end, row(d));
    }
  }

  void add_block(const ScheduledBlock& step, int begin, int end, int y) {
    constexpr std::array<std::string_view, 3> tones = {"", " tone1", " tone2"};
    const Block& block = placement_.blocks[step.block];
    const int width = width_of(begin, end);
    text_ += fmt::format("<rect x=\"{}.{}\" y=\"{}\" width=\"{}.{}\" height=\"{}\" class=\"{}{}\"",
                         begin / 10, begin % 10, y, width / 10, width % 10, kBar, look(block.kind).style,
                         tones[chunks_[step.block] % tones.size()]);
    if (width < 10) {
      text_ += "/>\n";
      return;
    }
    text_ += fmt::format("><title>{} {}: {} – {}</title></rect>\n", escaped(block.name), step.micro_batch,
                         format_time(step.start), format_time(step.start + block.time));
    const std::string label =
        (has_letters_ ? look(block.kind).letter : "") + std::to_string(step.micro_batch);
    if (fits(label, width)) text_ += text_at((begin + width / 2) / 10, y + kBar / 2 + 4, "label", label);
  }

  void add_legend() {
    std::set<Kind> kinds;
    for (const Block& block : placement_.blocks) kinds.insert(block.kind);
    const int y = bottom_ + 46;
    int x = left_;
    const auto add = [&](std::string_view style, std::string_view name) {
      text_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" rx=\"2\" class=\"{}\"/>\n", x,
                           y - 10, style);
      text_ += text_at(x + 18, y, "soft", name);
      x += 34 + kLetter * static_cast<int>(name.size());
    };
    for (const Kind kind : kinds) add(look(kind).style, look(kind).name);
    add("row", "bubble");
    const bool several = std::any_of(chunks_.begin(), chunks_.end(), [](int chunk) { return chunk > 0; });
    text_ +=
        text_at(x, y, "soft",
                several ? "number: micro-batch; fainter: later chunks of a device" : "number: micro-batch");
  }

  const Plan& plan_;
  const Placement& placement_;
  std::vector<int> rows_;    ///< by device
  std::vector<int> chunks_;  ///< by block
  bool has_letters_ = true;  ///< before the numbers of micro-batches
  int left_ = 0;             ///< where time 0 is
  int bottom_ = 0;           ///< below the last row
  std::string text_;
};

}  // namespace

std::string show_svg(const Plan& plan, const Placement& placement) { return Picture(plan, placement).draw(); }

}  // namespace ostinato
