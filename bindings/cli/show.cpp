// SPDX-License-Identifier: Apache-2.0
#include "search/show/show.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "bindings/cli/command.h"
#include "bindings/cli/command_line.h"
#include "bindings/cli/plan_files.h"
#include "search/files/file.h"

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

}  // namespace

int show_command(const std::vector<std::string>& args, Io& io) {
  CommandLine line(
      "show",
      "Draws a plan: a timeline in the terminal, and where asked for a page for the browser that needs no\n"
      "network, an image, and a trace for ui.perfetto.dev.",
      "show plan.json placement.toml --html plan.html --svg plan.svg --perfetto plan.perfetto.json");
  const PlanArguments files(line);
  ShowOptions options;
  std::string html, svg, perfetto;
  line.whole_number("--width", options.width, {40, 10'000},
                    "Columns of the timeline (default: the terminal's, else 100)")
      .type_name("W");
  line.text("--html", html, "Page to write").type_name("FILE");
  line.text("--svg", svg, "Image to write, for light and dark pages").type_name("FILE");
  line.text("--perfetto", perfetto, "Trace to write, Chrome JSON").type_name("FILE");
  if (!line.parse(args, io)) return 0;
  const auto [file, plan, placement] = files.read_checked();
  if (!html.empty()) write_file(html, show_html(plan, placement));
  if (!svg.empty()) write_file(svg, show_svg(plan, placement));
  if (!perfetto.empty()) write_file(perfetto, show_perfetto(plan, placement));
  if (line.json) {
    Json json = {{"status", 0}, {"makespan", plan.makespan}};
    if (!html.empty()) json["html"] = html;
    if (!svg.empty()) json["svg"] = svg;
    if (!perfetto.empty()) json["perfetto"] = perfetto;
    print_json(json, io);
    return 0;
  }
  if (!line.given("--width")) options.width = io.out_is_terminal ? terminal_width() : kUsualWidth;
  options.color = wants_color(io);
  io.out << show_text(plan, placement, options);
  if (!html.empty()) io.out << "page: " << html << '\n';
  if (!svg.empty()) io.out << "image: " << svg << '\n';
  if (!perfetto.empty()) io.out << "trace: " << perfetto << '\n';
  return 0;
}

}  // namespace ostinato::cli
