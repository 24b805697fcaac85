// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ostinato partition GRAPH.csv --devices DEVICES.csv`: an operator graph onto devices that differ (Mayer et
// al., arXiv 1711.01912), by one of their strategies or by `best`. The other half of `partition` cuts
// profiles into stages.

#include <string>
#include <vector>

#include "bindings/cli/command.h"

namespace ostinato::cli {

/// Whether the arguments of `partition` ask for this half: --strategy is given, or the first file ends in
/// .csv.
bool asks_for_graph(const std::vector<std::string>& args);

/// Status 130 where Ctrl-C cut the search, with --strict 5 where --time-limit did; the best so far is printed
/// and written.
int partition_graph_command(const std::vector<std::string>& args, Io& io);

}  // namespace ostinato::cli
