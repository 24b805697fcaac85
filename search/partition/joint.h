// SPDX-License-Identifier: Apache-2.0
#pragma once
// The joint choice of placement and schedule: candidates are partitioned, bounded, and searched while their
// bound leaves room below the best plan so far. The winner is the shortest step within memory.
//
//   JointOptions options{.partition = {.devices = 4, .micro_batches = 16}, .shardable = {0, 23}};
//   options.search.micro_batches = 16;
//   JointChoice choice = choose_plan(profile, options);
//   const Candidate& best = choice.candidates[choice.winner];
//
// Candidates: every set of the shardable layers sharded (all of them, none, each alone, where they are more
// than kMostShardSets allow) x { one chunk per device; stages over the graph where the profile has branches;
// several chunks, looped and as a wave, through unlike devices as listed and by kind } x { backwards whole;
// split, where the profile has halves } x { keep all activations; recompute where keeping them would leave
// fewer micro-batches in flight }; the even split of the layers and the stages that suit 1F1B, so that the
// winner is never behind it; one chunk on fewer devices; and, where the latency is made small, stages for
// that.
//
// Three bounds drop a candidate, each proved: N times the least that its busiest device takes, before it is
// partitioned; the bounds of docs/bounds.md on its placement; and, where its search ends, the plan itself.
//
// Where devices share processors (placement.h, Host), each plan is judged by the makespan of its replay there
// (simulate.h), 1F1B on the same stages beside it, so that the winner is behind neither.
//
// Above them all stands a bound over every placement (any_placement.h), which the result states, and which
// ends the search where it is reached.
//
// Then the best candidates move: joint_climb.h changes cuts, devices and recomputation of their stages while
// that makes the step shorter, and begins again from a few random changes of the best. Where split backwards
// or shards win by less than the profile's times can tell, what keeps losses equal to 1F1B's is preferred,
// and of what is left the fewest blocks. Last, the winner holds less memory where that makes no step longer
// (leaner.h).

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "search/partition/partition_options.h"
#include "search/plan/plan.h"
#include "search/portfolio/search_options.h"

namespace ostinato {

/// Whether to try placements that leave devices idle: the last ones, in each order of unlike devices
/// (joint_candidates.h, device_orders()). some: on half of the devices, a quarter, ..., one, and on whole
/// nodes; up to kFewDevices on any number. every: on any number, and stages for a short latency may leave any
/// device idle.
enum class FewerDevices { none, some, every };
inline constexpr int kFewDevices = 8;

/// JointOptions::replicas: every number that divides devices and micro-batches is tried.
inline constexpr int kAnyReplicas = 0;

/// JointOptions::slices: a device stands for all ranks that hold slices of its layers; as many as a profile
/// has, and devices are ranks.
inline constexpr int kSlicesAside = 0, kAnySlices = -1;

struct JointOptions {
  PartitionOptions partition;       ///< chunks, layout, sharded and recompute do not count: they are chosen
  std::vector<int> shardable = {};  ///< layers that may be sharded; rising
  Restrictions restrictions = {};   ///< including the profile's, where they are to hold
  bool recompute = true;            ///< try it where memory is short, in training
  bool graph = true;                ///< try stages over the graph, where the profile has branches
  bool moves = true;                ///< let the best candidates move
  FewerDevices fewer_devices = FewerDevices::every;
  int replicas = 1;           ///< pipelines beside each other; of choose_degree() alone (degrees.h)
  int slices = kSlicesAside;  ///< ranks that hold slices of each layer; of choose_degree() alone
  SearchOptions search = {};  ///< the time limit is for all searches together

  bool one_pipeline() const { return replicas == 1 && slices == kSlicesAside; }
};

/// One placement to try. Either `plan` is there, or `why_not` says what spoke against it.
struct Candidate {
  std::string name;            ///< "looped, 2 chunks per device"
  PartitionOptions options;    ///< with the choices filled in
  std::vector<int> idle = {};  ///< devices that it is not made for; rising
  bool graph = false;          ///< stages over the graph (branches.h), else of the chain
  bool even = false;           ///< as many layers on each device (even_split.h)
  bool usual = false;          ///< stages for 1F1B (usual_cut.h)
  bool quick = false;          ///< stages for a short latency (latency.h)
  bool moved = false;          ///< made from another candidate by moves (joint_climb.h)
  std::optional<StageCuts> cuts;
  std::optional<Placement> placement;
  Nanoseconds bound = 0;  ///< proven, of the objective; 0: not computed
  std::optional<Plan> plan;
  Nanoseconds shared = 0;  ///< the plan's makespan where devices share processors (Host); 0: they do not
  Nanoseconds step = 0;  ///< of a plan: its value, and what the optimizer's step adds; plans are judged by it
  double seconds = 0;    ///< of its search
  std::string why_not;
  bool infeasible = false;             ///< `why_not` is a proof that nothing fits
  bool no_shorter = false;             ///< `why_not` is a proof that it is no shorter than another one
  std::optional<Rule> forbidden = {};  ///< `why_not` is a restriction: it has a bound, and no placement
  bool too_late = false;               ///< `why_not` is the time limit
  bool wrong_input = false;            ///< `why_not` is what the profile or the options got wrong
  bool cut = false;    ///< some search of it was cut by its time, whether or not its plan was kept
  bool whole = false;  ///< searched with all of the effort

  int devices() const;        ///< that it is made for
  bool keeps_losses() const;  ///< equal to 1F1B's bit for bit: no split backwards, no shards
  Nanoseconds value() const;  ///< `shared`, else the plan's objective; only where there is a plan
};

/// One chunk per device on all devices, nothing sharded, backwards as asked for, and no more recomputation
/// than `most`: the best stages of that kind for any schedule, or for 1F1B, or the even split. 1F1B on these
/// is what a plan is shown beside.
bool is_usual(const Candidate& candidate, const PartitionOptions& asked, Recompute most = Recompute::never);

struct JointChoice {
  std::vector<Candidate> candidates;
  std::size_t winner = 0;
  /// Where that is another: the winner keeps losses equal to 1F1B's, or has fewer blocks on the same devices,
  /// and is longer by less than the profile's times can tell (unknown_share(), profile_noise.h), one part in
  /// a hundred at most.
  std::optional<std::size_t> shortest = {};
  int devices = 0;              ///< there are
  bool all_devices = false;     ///< none that leaves devices idle was tried
  bool interrupted = false;     ///< a stop left candidates untried
  Restrictions not_tried = {};  ///< the ones in the options that left something out
  bool cut_short = false;       ///< the time limit left something untried that is no candidate: moves
  AnyPlacement any_placement;   ///< what no placement of these layers goes below
  std::vector<Nanoseconds> least_times = {};  ///< by layer, of a micro-batch (any_placement.h)
};

/// Searches one placement; what shortest_plan() is, with whatever the caller shows meanwhile.
using Searcher = std::function<Plan(const Placement&, const SearchOptions&, const std::string& name)>;

/// Throws InputError where the profile or the options allow no partition at all, or are what every candidate
/// was refused for; InfeasibleError where no placement fits (any_fit.h); and UndecidedError where nothing was
/// found otherwise.
JointChoice choose_plan(const Profile& profile, const JointOptions& options, const Searcher& searcher = {});

/// The layers of these names or indices ("0:Embedding", "0"), rising, without duplicates; an empty text means
/// none. Throws InputError ("did you mean") for any other.
std::vector<int> find_layers(const Profile& profile, const std::string& comma_separated);

/// The most of these stages that one device has.
int most_on_one_device(const std::vector<Stage>& stages);

/// The layers that the profile says may be sharded.
std::vector<int> shardable_layers(const Profile& profile);

/// Numbers of chunks above one that are tried: every one up to 10, then fewer and fewer; no more than `most`
/// (0: kMostChunks), nor than layers there are.
std::vector<int> chunk_numbers(long layers, long devices, int most);

inline constexpr int kMostChunks = 64;
inline constexpr int kMostShardSets = 16;

}  // namespace ostinato
