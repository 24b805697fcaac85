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

#include <optional>
#include <string>
#include <vector>

#include "search/placement/placement.h"
#include "search/plan/plan.h"
#include "search/show/measured.h"

namespace ostinato {

struct ShowOptions {
  int width = 100;                ///< columns of a line, at least 40
  bool color = false;             ///< ANSI colours
  Nanoseconds from = 0;           ///< the time of the first column
  Nanoseconds to = -1;            ///< that behind the last one, above `from`; -1: the makespan
  std::vector<int> devices = {};  ///< the ones with a line, by index; empty: all
};

/// One line a device. A block is drawn over its share of the columns: its kind and micro-batch at the left
/// where they fit, then a filler for the kind. Blocks that are too short for that share columns, of which
/// each kind, and the bubble, has as many as its share of the time. Blank: bubble.
std::string show_text(const Plan& plan, const Placement& placement, const ShowOptions& options);

/// One of the plans on a page; keeps references.
struct ShownPlan {
  std::string title;  ///< the plan's file, say
  const Plan& plan;
  const Placement& placement;
};

/// A page with no references outside itself, light and dark: figures, and the plans one below another on one
/// time scale, with zoom, details of the block that is pointed at, memory curves, the repeating part, and on
/// demand transfers and what binds; images of it can be saved. A measured step lies below the first plan.
/// Asserts at least one plan.
std::string show_html(const std::vector<ShownPlan>& plans,
                      const std::optional<MeasuredStep>& measured = std::nullopt);
std::string show_html(const Plan& plan, const Placement& placement);

/// Chrome trace events: a process a device, a slice a block, a counter for the device's memory, and each
/// transfer as an asynchronous slice of its receiver and an arrow from the block that sends. Slices of a
/// block have its name, whatever the micro-batch, and the category of its kind.
std::string show_perfetto(const Plan& plan, const Placement& placement);

/// A picture for a page or a paper, light and dark: a row a device, each block with its micro-batch where it
/// fits, an axis and a legend; no references outside itself. At most 9,300 shapes a device: of blocks that
/// are smaller than a tenth of a point those are drawn that lie on a border between two tenths.
std::string show_svg(const Plan& plan, const Placement& placement);

}  // namespace ostinato
