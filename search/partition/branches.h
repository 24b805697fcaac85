// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stages over a graph with branches: K-like placements instead of a forced chain.
//
//   StageCuts cuts = cut_graph(profile, options);     // layers of the profile name what they read (`after`)
//
// A stage is a connected set of layers such that no path leaves it and comes back: the set between two
// downsets (downsets.h). Branches that run on different devices then run at the same time, so the pipeline is
// as deep as its longest branch and not as long as the model. A dynamic program over the downsets minimizes
// the load of the busiest device exactly; on a tie, the sum of squared loads. Memory, recomputation and
// sharded layers are as in chain.h, with what is in flight counted over the stages in the order in which they
// are laid out: more than a stage on a parallel branch needs.
//
// Where the layers have more than kMostDownsets downsets, small layers are joined (contraction.h) until they
// have no more. The result is no longer exact then, and its bound counts only the work. Runs of layers in
// their order (chain.h) are tried too, and taken where the busiest device is less busy: they may end between
// two layers that are joined, and need not be connected.
//
// Source: Tarnawski, Phanishayee, Devanur, Mahajan, Paravecino, "Efficient algorithms for device placement of
// DNN graph operators" (NeurIPS 2020); this adds connected stages to their dynamic program.

#include "search/partition/partition_options.h"

namespace ostinato {

/// One stage per device; `options.chunks` and `options.layout` do not count, devices are taken in the order
/// of the cluster. O(downsets^2 * stage + candidates for a stage * devices) in the worst case. Throws
/// InputError as check_partition(), for more devices than layers, for a graph with more than kMostDownsets
/// downsets after joining, or kMostStageSets candidates for a stage, and where no partition into connected
/// stages was found that fits.
StageCuts cut_graph(const Profile& profile, const PartitionOptions& options);

inline constexpr int kMostDownsets = 4096;
inline constexpr int kMostStageSets = 400'000;

}  // namespace ostinato
