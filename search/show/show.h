// SPDX-License-Identifier: Apache-2.0
#pragma once
// A plan as people look at it: a timeline in the terminal, a page for the browser, an image, a trace for
// Perfetto.
//
//   std::cout << show_text(plan, placement, {.width = 120, .color = true});
//   write_file("plan.html", show_html(plan, placement));          // opens without a network
//   write_file("plan.svg", show_svg(plan, placement));            // an image
//   write_file("plan.json", show_perfetto(plan, placement));      // ui.perfetto.dev, chrome://tracing
//
// All four are functions of the plan alone: the same plan gives the same bytes.

#include <string>

#include "search/placement/placement.h"
#include "search/plan/plan.h"

namespace ostinato {

struct ShowOptions {
  int width = 100;     ///< columns of a line, at least 40
  bool color = false;  ///< ANSI colours
};

/// One line a device. A block is drawn over its share of the columns: its kind and micro-batch at the left
/// where they fit, then a filler for the kind; a column that several blocks share shows the kind that takes
/// most of it. Blank: bubble.
std::string show_text(const Plan& plan, const Placement& placement, const ShowOptions& options);

/// A page with no references outside itself: figures, timeline with zoom and details on hover, light and
/// dark.
std::string show_html(const Plan& plan, const Placement& placement);

/// Chrome trace events: a process a device, a slice a block, a counter for the device's memory.
std::string show_perfetto(const Plan& plan, const Placement& placement);

/// A picture for a page or a paper, light and dark: a row a device, each block with its micro-batch where it
/// fits, an axis and a legend; no references outside itself. At most 9,300 shapes a device: of blocks that
/// are smaller than a tenth of a point those are drawn that lie on a border between two tenths.
std::string show_svg(const Plan& plan, const Placement& placement);

}  // namespace ostinato
