// SPDX-License-Identifier: Apache-2.0
#include "search/show/show.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/cli/command.h"
#include "bindings/cli/command_line.h"
#include "bindings/cli/plan_files.h"
#include "bindings/cli/show_page.h"
#include "bindings/core/numbers.h"
#include "bindings/core/usage_error.h"
#include "search/files/file.h"
#include "search/files/printable.h"
#include "search/files/wrapped.h"
#include "search/named/named.h"
#include "search/placement/quantity.h"
#include "search/plan/one_batch.h"
#include "search/simulate/simulate.h"

namespace ostinato::cli {
namespace {

constexpr int kUsualWidth = static_cast<int>(kColumns);
constexpr int kLeastWidth = 40, kMostWidth = 10'000;

int terminal_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualWidth;
  return size.ws_col;
}

/// As the environment has it for what is no terminal.
int columns() {
  const char* set = std::getenv("COLUMNS");
  const std::string_view text = set == nullptr ? "" : set;
  int columns = 0;
  std::from_chars(text.data(), text.data() + text.size(), columns);  // what is no number leaves 0
  return columns == 0 ? kUsualWidth : std::clamp(columns, kLeastWidth, kMostWidth);
}

/// Colours on a terminal that has them, unless NO_COLOR (no-color.org) is set to anything.
bool wants_color(const Io& io) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return io.out_is_terminal && (no_color == nullptr || *no_color == '\0') && terminal != nullptr &&
         std::string_view(terminal) != "dumb";
}

/// What is asked for besides the plan itself.
struct Asked {
  ShowOptions timeline;
  std::string from, to, devices;
  PageRequest page;
  std::string svg, perfetto;
};

/// "12ms". A bare number would be nanoseconds to one reader and seconds to the next. Throws UsageError.
Nanoseconds time_of(const std::string& option, const std::string& text) {
  const auto time = parse_time(text, "");
  if (!time)
    throw UsageError(
        fmt::format("{} needs a time with a unit, such as 12.5ms; got \"{}\"", option, printable(text)));
  return *time;
}

void set_window(ShowOptions& options, const Asked& asked, Nanoseconds makespan) {
  if (!asked.from.empty()) options.from = time_of("--from", asked.from);
  if (!asked.to.empty()) options.to = std::min(time_of("--to", asked.to), makespan);
  if (options.from > 0 && options.from >= makespan)
    throw UsageError(fmt::format("--from {} is after the end of the plan, {}", printable(asked.from),
                                 format_time(makespan)));
  if (options.to >= 0 && options.to <= options.from)
    throw UsageError(fmt::format("--to {} must be later than --from", printable(asked.to)));
}

/// "0-3,7": positions in the placement. Throws UsageError.
std::vector<int> devices_of(const std::string& text, int count) {
  const auto wrong = [&] {
    return UsageError(fmt::format("--devices needs positions from 0 to {}, such as 0-3,7; got \"{}\"",
                                  count - 1, printable(text)));
  };
  std::vector<int> devices;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const std::size_t dash = std::min(part.find('-'), part.size());
    const std::string first = part.substr(0, dash), last = dash < part.size() ? part.substr(dash + 1) : first;
    if (!core::is_whole_number(first, 0, count - 1) || !core::is_whole_number(last, 0, count - 1))
      throw wrong();
    if (std::stoi(last) < std::stoi(first)) throw wrong();
    for (int d = std::stoi(first); d <= std::stoi(last); ++d) devices.push_back(d);
    begin = end + 1;
  }
  return devices;
}

void declare(CommandLine& line, Asked& asked) {
  line.whole_number("--width", asked.timeline.width, {kLeastWidth, kMostWidth},
                    "Columns of the timeline (default: the terminal's, or $COLUMNS, else 80)")
      .type_name("W");
  line.text("--from", asked.from, "Start of the timeline, with a unit (ns, us, ms or s): 12.5ms")
      .type_name("TIME");
  line.text("--to", asked.to, "Its end, with a unit").type_name("TIME");
  line.text("--devices", asked.devices, "Devices to draw, by position: 0-7 or 0-3,12").type_name("LIST");
  line.text("--html", asked.page.file, "Page to write").type_name("FILE");
  line.texts("--against", asked.page.against,
             "On the page, draw below it another plan, or a known schedule of its placement such as 1f1b; "
             "repeatable")
      .type_name("PLAN");
  line.texts("--placement", asked.page.placements,
             "Placement of an --against plan, if it is in another folder; repeatable")
      .type_name("FILE");
  line.text("--trace", asked.page.trace, "On the page, draw the measured step: the \"trace\" folder of a run")
      .type_name("FOLDER");
  line.text("--svg", asked.svg, "Image to write, for light and dark pages").type_name("FILE");
  line.text("--perfetto", asked.perfetto, "Trace to write, Chrome JSON").type_name("FILE");
}

void refuse_what_needs_the_page(const CommandLine& line, const Asked& asked) {
  for (const char* option : {"--against", "--trace"})
    if (line.given(option) && asked.page.file.empty())
      throw UsageError(fmt::format("{} is drawn on the page: add --html FILE", option));
  if (line.given("--placement") && asked.page.against.empty())
    throw UsageError("--placement needs --against: it is the placement of that plan");
}

/// Of a plan for micro-batches of unequal size.
void refuse_named(const std::vector<std::string>& against) {
  const auto& names = named_schedules();
  for (const std::string& what : against)
    if (std::find(names.begin(), names.end(), what) != names.end())
      throw UsageError(fmt::format(
          "--against {}: a plan with unequal micro-batches compares only with another plan's file", what));
}

std::vector<std::string> read_files(const PlanArguments& files, const PageRequest& page) {
  std::vector<std::string> read = {files.plan, files.placement_file()};
  const std::vector<std::string> of_page = files_of(page);
  read.insert(read.end(), of_page.begin(), of_page.end());
  return read;
}

Json written(const Asked& asked) {
  Json json = Json::object();
  if (!asked.page.file.empty()) json["html"] = asked.page.file;
  if (!asked.svg.empty()) json["svg"] = asked.svg;
  if (!asked.perfetto.empty()) json["perfetto"] = asked.perfetto;
  return json;
}

}  // namespace

int show_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line("show",
                   "Draws a plan as a timeline in the terminal and, on request, as an HTML page that needs "
                   "no network, as an image, or as a trace for ui.perfetto.dev.",
                   "show plan.json placement.toml --html plan.html --against 1f1b --svg plan.svg");
  const PlanArguments files(line);
  Asked asked;
  declare(line, asked);
  if (!line.parse(args, io)) return 0;
  refuse_what_needs_the_page(line, asked);
  check_apart({{"--html", asked.page.file}, {"--svg", asked.svg}, {"--perfetto", asked.perfetto}},
              read_files(files, asked.page));
  const PlanAndPlacement read = files.read_checked();
  if (!read.plan.sizes.empty()) refuse_named(asked.page.against);
  const auto [placement, plan] = as_drawn(read.plan, read.file.placement);
  ShowOptions& options = asked.timeline;
  set_window(options, asked, plan.makespan);
  if (line.given("--devices"))
    options.devices = devices_of(asked.devices, static_cast<int>(placement.devices.size()));
  asked.page.model = read.file.model;
  if (!asked.page.file.empty())
    for (const std::string& why : write_page(asked.page, files.plan, plan, placement))
      io.err << "ostinato show: not drawn: " << printable(why) << '\n';
  if (!asked.svg.empty()) write_file(asked.svg, show_svg(plan, placement));
  if (!asked.perfetto.empty()) write_file(asked.perfetto, show_perfetto(plan, placement));
  if (line.json) {
    Json json = {{"status", 0}, {"makespan", plan.makespan}};
    if (!placement.hosts.empty()) json["shared_makespan"] = predicted_makespan(plan, placement);
    json.update(written(asked));
    print_json(json, io);
    return 0;
  }
  if (!line.given("--width")) options.width = io.out_is_terminal ? terminal_width() : columns();
  options.color = wants_color(io);
  io.out << show_text(plan, placement, options);
  if (!asked.page.file.empty()) io.out << "page: " << printable(asked.page.file) << '\n';
  if (!asked.svg.empty()) io.out << "image: " << printable(asked.svg) << '\n';
  if (!asked.perfetto.empty()) io.out << "trace: " << printable(asked.perfetto) << '\n';
  return 0;
}

}  // namespace ostinato::cli
