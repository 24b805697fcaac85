// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/shape_sketch.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "search/placement/shape_stages.h"
#include "search/placement/shapes.h"

namespace ostinato::cli {
namespace {

/// The column of every block: the number of blocks on the longest path that leads to it.
std::vector<std::size_t> columns(const Placement& placement) {
  std::vector<std::size_t> column(placement.blocks.size(), 0);
  for (const int b : topological_order(placement)) {
    for (const Dependency& input : placement.blocks[b].after)
      column[b] = std::max(column[b], column[input.block] + 1);
  }
  return column;
}

}  // namespace

std::string shape_sketch(const std::string& name) {
  const Placement placement = shape(name, {});
  const std::vector<std::size_t> column = columns(placement);
  const std::size_t width = 2 * *std::max_element(column.begin(), column.end()) + 1;
  std::vector<std::string> rows(placement.devices.size(), std::string(width, ' '));
  for (std::size_t b = 0; b < column.size(); ++b) {
    const Block& block = placement.blocks[b];
    for (const int d : block.devices) rows[d][2 * column[b]] = block.kind == Kind::forward ? 'F' : 'B';
  }
  std::string text;
  for (std::size_t d = 0; d < rows.size(); ++d) {
    rows[d].erase(rows[d].find_last_not_of(' ') + 1);
    text += fmt::format("    device {}   {}\n", d, rows[d]);
  }
  return text;
}

std::string all_shape_sketches() {
  std::string text = "Shapes, drawn for one micro-batch on 4 devices (time runs to the right):\n";
  for (const NamedShape& named : named_shapes()) {
    text += fmt::format("  {}: {}\n{}", named.name, named.about, shape_sketch(named.name));
  }
  return text;
}

}  // namespace ostinato::cli
