// SPDX-License-Identifier: Apache-2.0
#include "search/partition/degrees.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/partition/any_placement.h"
#include "search/partition/stage_cost.h"
#include "search/placement/quantity.h"

namespace ostinato {
namespace {

class DegreeChooser {
 public:
  DegreeChooser(const std::vector<SlicedProfile>& profiles, const Searcher& searcher)
      : profiles_(profiles),
        options_(profiles.front().options),
        searcher_(searcher),
        all_(cluster_of(options_.partition)) {}

  DegreeChoice choose() {
    check();
    list();
    for (std::size_t i = 0; i < choice_.degrees.size(); ++i)
      try_one(choice_.degrees[i], choice_.degrees.size() - i);
    choice_.chosen = shortest();
    return std::move(choice_);
  }

 private:
  int devices() const { return static_cast<int>(all_.devices.size()); }

  int slices_of(const Profile& profile) const { return options_.slices == kSlicesAside ? 1 : profile.slices; }

  bool divides(int replicas, int slices) const {
    return devices() % (replicas * slices) == 0 && options_.search.micro_batches % replicas == 0;
  }

  void check() const {
    check_profiles();
    if (!options_.one_pipeline() && all_.kinds.size() > 1)
      throw InputError("", 0, "replicas and slices need devices of one kind");
    const int replicas = std::max(options_.replicas, 1);
    if (options_.slices != kAnySlices || profiles_.size() == 1) {
      const int slices = options_.slices > 0 ? options_.slices : slices_of(*profiles_.front().profile);
      check_count(replicas * slices, parts_text(replicas, slices), devices(), "device");
    }
    check_count(replicas, counted(replicas, "replica"), options_.search.micro_batches, "micro-batch");
  }

  static std::string parts_text(int replicas, int slices) {
    if (slices == 1) return counted(replicas, "replica");
    return (replicas == 1 ? "" : counted(replicas, "replica") + " of ") + counted(slices, "slice");
  }

  static void check_count(int parts, const std::string& what, int count, const std::string& of) {
    if (count % parts == 0) return;
    const int next = (count / parts + 1) * parts;
    throw InputError(
        "", 0,
        fmt::format("{} do not divide {} evenly: use {}", what, counted(count, of),
                    (count > parts ? fmt::format("{} or ", next - parts) : "") + counted(next, of)));
  }

  void check_profiles() const {
    const Profile& first = *profiles_.front().profile;
    std::set<int> slices;
    for (const SlicedProfile& one : profiles_) {
      const Profile& profile = *one.profile;
      if (!slices.insert(profile.slices).second)
        throw InputError("", 0, fmt::format("two profiles have {}", counted(profile.slices, "slice")));
      if (!std::ranges::equal(profile.layers, first.layers, {}, &LayerCost::name, &LayerCost::name))
        throw InputError("", 0, "the profiles are of models with different layers");
      if (profile.micro_batch_size != first.micro_batch_size)
        throw InputError("", 0,
                         fmt::format("the profiles have micro-batches of {} and {} samples",
                                     first.micro_batch_size, profile.micro_batch_size));
    }
    if (options_.slices <= 0 || slices.contains(options_.slices)) return;
    throw InputError("", 0,
                     fmt::format("no profile was made with {}; those of the profiles: {}",
                                 counted(options_.slices, "slice"), fmt::join(slices, ", ")));
  }

  void list() {
    for (const SlicedProfile& one : profiles_) {
      const int slices = slices_of(*one.profile);
      if (options_.slices > 0 && options_.slices != slices) continue;
      for (int replicas = devices() / slices; replicas >= 1; --replicas) {
        if (options_.replicas != kAnyReplicas && options_.replicas != replicas) continue;
        if (divides(replicas, slices)) add(one, replicas, slices);
      }
    }
    if (choice_.degrees.empty())
      throw InputError("", 0,
                       fmt::format("{} cannot be divided into pipelines of the slices of any profile",
                                   counted(devices(), "device")));
  }

  void add(const SlicedProfile& one, int replicas, int slices) {
    Degree& degree = choice_.degrees.emplace_back();
    degree.pipeline = devices() / replicas / slices;
    degree.replicas = replicas;
    degree.slices = slices;
    degree.profile = divided({std::shared_ptr<void>(), one.profile}, replicas);
    degree.options = options_of(degree, one.options);
  }

  /// ZeRO divides the optimizer's state and step over the replicas; without replicas, as in the run that was
  /// profiled.
  std::shared_ptr<const Profile> divided(std::shared_ptr<const Profile> profile, int replicas) const {
    const auto [ranks, step] = profile->zero;
    if (options_.one_pipeline() || ranks == 0 || ranks == replicas) return profile;
    const auto part = [&, ranks = ranks](std::int64_t of_rank) {  // bytes or nanoseconds
      const auto whole = static_cast<__int128>(of_rank) * ranks;
      return static_cast<std::int64_t>(std::min<__int128>(chain::share(whole, replicas), kUnlimited));
    };
    auto made = std::make_shared<Profile>(*profile);
    for (LayerCost& layer : made->layers) {
      layer.optimizer_state = part(layer.optimizer_state);
      layer.step_time = part(layer.step_time);
      if (step) layer.step_together = part(layer.step_together);
    }
    made->zero.ranks = replicas;
    return made;
  }

  /// Where there are replicas every device of each must have a part.
  JointOptions options_of(const Degree& degree, JointOptions options) const {
    if (options_.one_pipeline()) return options;
    options.replicas = 1;
    options.slices = kSlicesAside;
    options.fewer_devices = FewerDevices::none;
    options.partition.cluster = pipeline_of(degree);
    options.search.micro_batches = options.partition.micro_batches =
        options_.search.micro_batches / degree.replicas;
    return options;
  }

  /// How far apart the ranks of two stages are.
  static int apart(const Degree& degree) { return degree.replicas * degree.slices; }

  /// Each device stands for its ranks of all replicas: they share its processors and run the same plan.
  Cluster pipeline_of(const Degree& degree) const {
    Cluster one = all_;
    for (DeviceKind& kind : one.kinds)
      if (kind.profile) kind.profile = divided(kind.profile, degree.replicas);
    one.devices.clear();
    for (int stage = 0; stage < degree.pipeline; ++stage) {
      const int first = stage * apart(degree);
      ClusterDevice& device = one.devices.emplace_back(all_.devices[first]);
      for (int rank = first; rank < first + apart(degree); ++rank)
        device.rank_nodes.push_back(all_.devices[rank].node);
    }
    return one;
  }

  /// With the slowest of the links between the ranks of two stages, one for each pipeline, where that was
  /// measured; else it is the usual one. All rows count for that, those left out here, too.
  Profile profile_of(const Degree& degree) const {
    Profile profile = *degree.profile;
    if (options_.one_pipeline()) return profile;
    const int ranks = apart(degree);
    std::map<std::pair<int, int>, std::pair<int, TransferCost*>> slowest;  // and how many were measured
    for (TransferCost& row : profile.transfers) {
      const bool within = row.from % ranks == row.to % ranks;
      const std::pair<int, int> stages{row.from / ranks, row.to / ranks};
      row.from = row.to = devices();
      if (!within) continue;
      auto& [measured, kept] = slowest[stages];
      ++measured;
      if (kept == nullptr || &slower(kept->link, row.link) == &row.link) kept = &row;
    }
    const Link usual = LinkTable(profile, {}).between(0, 0);
    for (auto& [stages, found] : slowest) {
      auto& [measured, kept] = found;
      const bool all = measured == ranks || &slower(kept->link, usual) == &kept->link;
      if (all) std::tie(kept->from, kept->to) = stages;
    }
    return profile;
  }

  void try_one(Degree& degree, std::size_t left) {
    if (const SearchOptions& search = options_.search; search.time_limit_seconds > 0) {
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began_;
      degree.options.search.time_limit_seconds =
          std::max(0.001, (search.time_limit_seconds - spent.count()) / static_cast<double>(left));
    }
    if (!slices_together(degree)) {
      none_fits_ = false;
      return refuse(degree, InputError("", 0, "slices of a layer would lie on several nodes"));
    }
    const Profile profile = profile_of(degree);
    if (choice_.degrees.size() > 1 && too_long(degree, profile)) return;
    try {
      degree.choice = choose_plan(profile, degree.options, searcher_);
      degree.all_reduce = all_reduce_of(degree);
      best_ = std::min(best_, degree.step());
    } catch (const InfeasibleError& error) {
      wrong_input_ = false;
      refuse(degree, error);
    } catch (const UndecidedError& error) {
      none_fits_ = wrong_input_ = false;
      refuse(degree, error);
    } catch (const InputError& error) {
      none_fits_ = false;
      refuse(degree, error);
    }
  }

  /// Their collectives were measured so.
  bool slices_together(const Degree& degree) const {
    for (int first = 0; first < devices(); first += degree.slices)
      for (int d = first; d < first + degree.slices; ++d)
        if (all_.devices[d].node != all_.devices[first].node) return false;
    return true;
  }

  template <class Error>
  void refuse(Degree& degree, const Error& error) {
    if (choice_.degrees.size() == 1) throw error;
    degree.why_not = error.what();
    degree.why_not.resize(std::min(degree.why_not.size(), degree.why_not.find('\n')));
  }

  /// Shown without a plan: no placement of such a pipeline is shorter than what was found.
  bool too_long(Degree& degree, const Profile& profile) const {
    const Nanoseconds bound = bound_any_placement(profile, degree.options, best_).lower_bound;
    if (best_ == kNone || bound < best_) return false;
    degree.why_not = fmt::format("no placement takes less than {}", format_time(bound));
    return true;
  }

  Nanoseconds all_reduce_of(const Degree& degree) const {
    if (degree.replicas == 1 || options_.partition.inference) return 0;
    const LinkTable links(*degree.profile, all_);
    std::vector<Bytes> sent(degree.pipeline, 0);
    for (const Stage& stage : degree.winner().cuts->stages) {
      for (const int l : stage.layers) {
        const LayerCost& layer = degree.profile->layers[l];
        for (const int d : stage.devices)
          sent[d] +=
              chain::share(layer.reduced.value_or(layer.gradients), static_cast<int>(stage.devices.size()));
      }
    }
    Nanoseconds longest = 0;
    std::vector<int> ranks(degree.replicas);
    for (int d = 0; d < degree.pipeline; ++d) {
      for (int k = 0; k < degree.replicas; ++k) ranks[k] = (d * degree.replicas + k) * degree.slices;
      longest = std::max(longest, chain::all_reduce(links, ranks, sent[d]));
    }
    return longest;
  }

  std::size_t shortest() const {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < choice_.degrees.size(); ++i) {
      if (!choice_.degrees[i].choice) continue;
      if (!best || choice_.degrees[i].step() < choice_.degrees[*best].step()) best = i;
    }
    if (best) return *best;
    std::string reasons;
    for (const Degree& d : choice_.degrees)
      reasons += fmt::format("\n  {} x {} x {}: {}", d.pipeline, d.slices, d.replicas, d.why_not);
    const std::string message = "no division into pipeline x slices x replicas has a plan:" + reasons;
    if (none_fits_) throw InfeasibleError(message);
    if (wrong_input_) throw InputError("", 0, message);
    throw UndecidedError(message);
  }

  static constexpr Nanoseconds kNone = std::numeric_limits<Nanoseconds>::max();

  const std::vector<SlicedProfile>& profiles_;
  const JointOptions& options_;  ///< of the first profile: what follows from a profile does not count here
  const Searcher& searcher_;
  const Cluster all_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  DegreeChoice choice_;
  Nanoseconds best_ = kNone;
  bool none_fits_ = true;    ///< proved of all that were tried
  bool wrong_input_ = true;  ///< what each of them was refused for
};

}  // namespace

DegreeChoice choose_degree(const Profile& profile, const JointOptions& options, const Searcher& searcher) {
  return choose_degree({{&profile, options}}, searcher);
}

DegreeChoice choose_degree(const std::vector<SlicedProfile>& profiles, const Searcher& searcher) {
  return DegreeChooser(profiles, searcher).choose();
}

}  // namespace ostinato
