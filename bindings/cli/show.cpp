// SPDX-License-Identifier: Apache-2.0
#include "search/show/show.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/cli/command.h"
#include "bindings/cli/command_line.h"
#include "bindings/cli/plan_files.h"
#include "bindings/core/numbers.h"
#include "bindings/core/usage_error.h"
#include "search/checker/checker.h"
#include "search/files/file.h"
#include "search/files/printable.h"
#include "search/files/sha256.h"
#include "search/named/named.h"
#include "search/placement/quantity.h"
#include "search/plan/orders.h"

namespace ostinato::cli {
namespace {

constexpr int kUsualWidth = 100;

int terminal_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualWidth;
  return size.ws_col;
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
  std::string html, svg, perfetto, trace;
  std::vector<std::string> against, placements;
};

/// "12ms", or a bare number of nanoseconds. Throws UsageError.
Nanoseconds time_of(const std::string& option, const std::string& text) {
  const auto time = parse_time(text, "ns");
  if (!time)
    throw UsageError(
        fmt::format("{} needs a time with a unit, as 12.5ms, got \"{}\"", option, printable(text)));
  return *time;
}

void set_window(ShowOptions& options, const Asked& asked, Nanoseconds makespan) {
  if (!asked.from.empty()) options.from = time_of("--from", asked.from);
  if (!asked.to.empty()) options.to = std::min(time_of("--to", asked.to), makespan);
  if (options.from > 0 && options.from >= makespan)
    throw UsageError(fmt::format("--from {} is behind the plan, which ends at {}", printable(asked.from),
                                 format_time(makespan)));
  if (options.to >= 0 && options.to <= options.from)
    throw UsageError(fmt::format("--to {} is not behind --from", printable(asked.to)));
}

/// "0-3,7": positions in the placement. Throws UsageError.
std::vector<int> devices_of(const std::string& text, int count) {
  const auto wrong = [&] {
    return UsageError(fmt::format("--devices needs positions from 0 to {}, as 0-3,7; got \"{}\"", count - 1,
                                  printable(text)));
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

/// A plan for the page, with what its ShownPlan refers to.
struct Beside {
  std::string title;
  Plan plan;
  Placement placement;
};

/// The named schedule of the plan's own placement and micro-batches. Throws UsageError where it admits none.
Beside named(const std::string& name, const Plan& plan, const Placement& placement) {
  const NamedSchedule found = named_schedule(name, placement, plan.micro_batches);
  std::string why = found.why_not;
  if (found.orders) {
    if (auto schedule = earliest_starts(placement, plan.micro_batches, *found.orders)) {
      Plan made;
      made.placement_name = plan.placement_name;
      made.micro_batches = plan.micro_batches;
      made.objective = plan.objective;
      made.schedule = std::move(*schedule);
      made.makespan = makespan_of(placement, made.schedule);
      made.peak_memory = peak_memory(placement, made.schedule);
      made.search.method = name;
      return {name, std::move(made), placement};
    }
    why = "its order contradicts the placement";
  }
  throw UsageError(fmt::format("--against {}: this placement has none: {}", name, why));
}

Beside beside(const std::string& what, const Asked& asked, const Plan& plan, const Placement& placement) {
  const auto& names = named_schedules();
  if (std::find(names.begin(), names.end(), what) != names.end()) return named(what, plan, placement);
  if (std::error_code error; !std::filesystem::exists(what, error)) {
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
    throw UsageError(
        fmt::format("--against {}: neither a plan's file nor a schedule ({})", printable(what), list));
  }
  const std::string file = placement_of(what, asked.placements).string();
  auto [written, other, as_planned] = read_plan_and_placement(what, file);
  refuse_unless_it_runs(other, written.placement, what, file);
  return {what, std::move(other), std::move(as_planned)};
}

MeasuredStep measured_step(const std::string& folder, const std::string& plan_path, const Plan& plan,
                           const Placement& placement) {
  MeasuredStep step = read_trace(folder);
  const std::string digest = sha256(read_file(plan_path, kMaxPlanBytes));
  if (!step.plan_sha256.empty() && step.plan_sha256 != digest)
    throw InputError(
        folder, 0,
        fmt::format("is the trace of another plan: its sha256 begins with {}, that of {} with {}",
                    printable(step.plan_sha256.substr(0, 12)), printable(plan_path), digest.substr(0, 12)));
  if (step.makespan != plan.makespan)
    throw InputError(folder, 0,
                     fmt::format("ran for {}, the plan takes {}: it ran another number of micro-batches",
                                 format_time(step.makespan), format_time(plan.makespan)));
  if (step.devices.size() > placement.devices.size())
    throw InputError(
        folder, 0,
        fmt::format("has {} devices, the placement {}", step.devices.size(), placement.devices.size()));
  return step;
}

void write_page(const Asked& asked, const std::string& path, const Plan& plan, const Placement& placement) {
  std::vector<Beside> others;
  for (const std::string& what : asked.against) others.push_back(beside(what, asked, plan, placement));
  std::optional<MeasuredStep> step;
  if (!asked.trace.empty()) step = measured_step(asked.trace, path, plan, placement);
  std::vector<ShownPlan> shown = {{path, plan, placement}};
  for (const Beside& other : others) shown.push_back({other.title, other.plan, other.placement});
  write_file(asked.html, show_html(shown, step));
}

void declare(CommandLine& line, Asked& asked) {
  line.whole_number("--width", asked.timeline.width, {40, 10'000},
                    "Columns of the timeline (default: the terminal's, else 100)")
      .type_name("W");
  line.text("--from", asked.from, "Begin of the timeline, as 12.5ms").type_name("TIME");
  line.text("--to", asked.to, "Its end").type_name("TIME");
  line.text("--devices", asked.devices, "Its devices by position, as 0-7 or 0-3,12").type_name("LIST");
  line.text("--html", asked.html, "Page to write").type_name("FILE");
  line.texts(
          "--against", asked.against,
          "On the page: another plan below it, or a named schedule of its placement, as 1f1b; may be given "
          "again")
      .type_name("PLAN");
  line.texts("--placement", asked.placements, "The placement of --against, where it does not lie beside it")
      .type_name("FILE");
  line.text("--trace", asked.trace, "On the page: the step that a run with this \"trace\" measured")
      .type_name("FOLDER");
  line.text("--svg", asked.svg, "Image to write, for light and dark pages").type_name("FILE");
  line.text("--perfetto", asked.perfetto, "Trace to write, Chrome JSON").type_name("FILE");
}

void refuse_what_needs_the_page(const CommandLine& line, const Asked& asked) {
  for (const char* option : {"--against", "--trace"})
    if (line.given(option) && asked.html.empty())
      throw UsageError(fmt::format("{} is drawn on the page: give --html FILE, too", option));
  if (line.given("--placement") && asked.against.empty())
    throw UsageError("--placement is that of a plan that --against names, which is missing");
}

Json written(const Asked& asked) {
  Json json = Json::object();
  if (!asked.html.empty()) json["html"] = asked.html;
  if (!asked.svg.empty()) json["svg"] = asked.svg;
  if (!asked.perfetto.empty()) json["perfetto"] = asked.perfetto;
  return json;
}

}  // namespace

int show_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line(
      "show",
      "Draws a plan: a timeline in the terminal, and where asked for a page for the browser that needs no\n"
      "network, an image, and a trace for ui.perfetto.dev.",
      "show plan.json placement.toml --html plan.html --against 1f1b --svg plan.svg");
  const PlanArguments files(line);
  Asked asked;
  declare(line, asked);
  if (!line.parse(args, io)) return 0;
  refuse_what_needs_the_page(line, asked);
  const auto [file, plan, placement] = files.read_checked();
  ShowOptions& options = asked.timeline;
  set_window(options, asked, plan.makespan);
  if (line.given("--devices"))
    options.devices = devices_of(asked.devices, static_cast<int>(placement.devices.size()));
  if (!asked.html.empty()) write_page(asked, files.plan, plan, placement);
  if (!asked.svg.empty()) write_file(asked.svg, show_svg(plan, placement));
  if (!asked.perfetto.empty()) write_file(asked.perfetto, show_perfetto(plan, placement));
  if (line.json) {
    Json json = {{"status", 0}, {"makespan", plan.makespan}};
    json.update(written(asked));
    print_json(json, io);
    return 0;
  }
  if (!line.given("--width")) options.width = io.out_is_terminal ? terminal_width() : kUsualWidth;
  options.color = wants_color(io);
  io.out << show_text(plan, placement, options);
  if (!asked.html.empty()) io.out << "page: " << asked.html << '\n';
  if (!asked.svg.empty()) io.out << "image: " << asked.svg << '\n';
  if (!asked.perfetto.empty()) io.out << "trace: " << asked.perfetto << '\n';
  return 0;
}

}  // namespace ostinato::cli
