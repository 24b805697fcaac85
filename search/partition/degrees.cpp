// SPDX-License-Identifier: Apache-2.0
#include "search/partition/degrees.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/partition/any_placement.h"
#include "search/partition/stage_cost.h"
#include "search/placement/quantity.h"

namespace ostinato {
namespace {

class DegreeChooser {
 public:
  DegreeChooser(const Profile& profile, const JointOptions& options, const Searcher& searcher)
      : profile_(profile), options_(options), searcher_(searcher), all_(cluster_of(options.partition)) {}

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

  bool divides(int replicas) const {
    return devices() % replicas == 0 && options_.search.micro_batches % replicas == 0;
  }

  void check() const {
    const int replicas = options_.replicas;
    if (replicas != 1 && all_.kinds.size() > 1) throw InputError("", 0, "replicas need devices of one kind");
    if (replicas == kAnyReplicas || divides(replicas)) return;
    const bool of_devices = devices() % replicas != 0;
    const int count = of_devices ? devices() : options_.search.micro_batches;
    const int next = (count / replicas + 1) * replicas;
    const std::string what = of_devices ? "device" : "micro-batch";
    throw InputError(
        "", 0,
        fmt::format("{} do not divide {} evenly: use {}", counted(replicas, "replica"), counted(count, what),
                    (count > replicas ? fmt::format("{} or ", next - replicas) : "") + counted(next, what)));
  }

  void list() {
    for (int replicas = devices(); replicas >= 1; --replicas) {
      if (options_.replicas != kAnyReplicas && options_.replicas != replicas) continue;
      if (!divides(replicas)) continue;
      Degree& degree = choice_.degrees.emplace_back();
      degree.pipeline = devices() / replicas;
      degree.replicas = replicas;
      degree.options = options_of(degree);
    }
  }

  /// Where there are replicas every device of each must have a part.
  JointOptions options_of(const Degree& degree) const {
    JointOptions options = options_;
    if (options_.replicas == 1) return options;
    options.replicas = 1;
    options.fewer_devices = FewerDevices::none;
    options.partition.cluster = pipeline_of(degree);
    options.search.micro_batches = options.partition.micro_batches =
        options_.search.micro_batches / degree.replicas;
    return options;
  }

  Cluster pipeline_of(const Degree& degree) const {
    Cluster one = all_;
    one.devices.clear();
    for (int stage = 0; stage < degree.pipeline; ++stage)
      one.devices.push_back(all_.devices[stage * degree.replicas]);
    return one;
  }

  /// With the links between the ranks of the first pipeline, by their place in it. Rows of other pairs still
  /// count for the usual link.
  Profile profile_of(const Degree& degree) const {
    Profile profile = profile_;
    if (options_.replicas == 1) return profile;
    const auto place = [&](int rank) {
      return rank % degree.replicas == 0 ? rank / degree.replicas : devices();
    };
    for (TransferCost& row : profile.transfers) {
      row.from = place(row.from);
      row.to = place(row.to);
    }
    return profile;
  }

  void try_one(Degree& degree, std::size_t left) {
    if (const SearchOptions& search = options_.search; search.time_limit_seconds > 0) {
      const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began_;
      degree.options.search.time_limit_seconds =
          std::max(0.001, (search.time_limit_seconds - spent.count()) / static_cast<double>(left));
    }
    const Profile profile = profile_of(degree);
    if (choice_.degrees.size() > 1 && too_long(degree, profile)) return;
    try {
      degree.choice = choose_plan(profile, degree.options, searcher_);
      degree.all_reduce = all_reduce_of(degree);
      best_ = std::min(best_, degree.step());
    } catch (const InfeasibleError& error) {
      refuse(degree, error);
    } catch (const InputError& error) {
      none_fits_ = false;
      refuse(degree, error);
    }
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
    const LinkTable links(profile_, all_);
    std::vector<Bytes> gradients(degree.pipeline, 0);
    for (const Stage& stage : degree.winner().cuts->stages) {
      for (const int l : stage.layers)
        for (const int d : stage.devices)
          gradients[d] += chain::share(profile_.layers[l].gradients, static_cast<int>(stage.devices.size()));
    }
    Nanoseconds longest = 0;
    std::vector<int> ranks(degree.replicas);
    for (int d = 0; d < degree.pipeline; ++d) {
      std::iota(ranks.begin(), ranks.end(), d * degree.replicas);
      longest = std::max(longest, chain::all_reduce(links, ranks, gradients[d]));
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
      reasons += fmt::format("\n  {} x {}: {}", d.pipeline, d.replicas, d.why_not);
    const std::string message = "no number of replicas has a plan:" + reasons;
    if (none_fits_) throw InfeasibleError(message);
    throw InputError("", 0, message);
  }

  static constexpr Nanoseconds kNone = std::numeric_limits<Nanoseconds>::max();

  const Profile& profile_;
  const JointOptions& options_;
  const Searcher& searcher_;
  const Cluster all_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  DegreeChoice choice_;
  Nanoseconds best_ = kNone;
  bool none_fits_ = true;  ///< proved of all that were tried
};

}  // namespace

DegreeChoice choose_degree(const Profile& profile, const JointOptions& options, const Searcher& searcher) {
  return DegreeChooser(profile, options, searcher).choose();
}

}  // namespace ostinato
