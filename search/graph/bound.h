// SPDX-License-Identifier: Apache-2.0
#pragma once
// A lower bound on the makespan of an operator graph on given devices, whatever the assignment and the
// schedule.
//
// reach(v, d) is a lower bound on when v can start if it runs on device d, and rest(v, d) one on the time
// from its end to the end of all that follows, both by dynamic programming over the graph (reach.h). At each
// step the neighbours of v are either on d too, and then one after the other, or elsewhere, and then behind a
// transfer from the device that suits best; the split that is best for v counts (Colin and Chretienne,
// Operations Research 39, 1991, for one rate). Then the same over several levels at once: what must gather on
// d because it would come too late from elsewhere runs there one after the other (cone.h). Then what
// precedes a join is seen together, every vertex of it on one device (window.h). Then the work before and
// behind each vertex, which all devices share (work.h). From them, for each group: on the device that is best
// for the group as a whole, the longest of these paths, and the group's own vertices one after the other
// between the reach of the first and what follows the last (Jackson's bound for one machine, over sets of
// latest vertices). The largest over all groups is the bound. The proofs: docs/bounds.md, G.

#include <functional>

#include "search/graph/graph.h"

namespace ostinato::graph {

/// A proven lower bound. O((V + E) * devices^2) time, mostly a fraction of it (it skips the devices at the
/// other end of an edge that are ready last), and O((V + E) * devices) memory; up to kMostForced times that
/// for the levels, which are left out where (V + E) * devices^2 is above 4 * 10^8; and some devices *
/// kMostAssumptions * kMostJobs times that for the windows, left out where (V + E) * devices is above 2 *
/// 10^6 too; and O(V * (V + E)) for the work, left out where that is above 2 * 10^7. Where (V + E) * devices
/// is above 2 * 10^7 only the longest path at the fastest allowed devices and all operations over all speeds
/// count, O(V + E). `stop` is asked before every vertex of a pass; when it says true, what is proved so far
/// is the bound, which is not below simple_graph_bound().
Ticks graph_lower_bound(
    const GraphCosts& costs, const std::function<bool()>& stop = [] { return false; });

/// The longest path and the operations over the speeds, alone.
Ticks simple_graph_bound(const GraphCosts& costs);

}  // namespace ostinato::graph
