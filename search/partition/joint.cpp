// SPDX-License-Identifier: Apache-2.0
#include "search/partition/joint.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <tuple>

#include "search/bounds/bounds.h"
#include "search/files/error.h"
#include "search/leaner.h"
#include "search/named/references.h"
#include "search/partition/any_placement.h"
#include "search/partition/branches.h"
#include "search/partition/chain.h"
#include "search/partition/even_split.h"
#include "search/partition/joint_candidates.h"
#include "search/partition/joint_climb.h"
#include "search/partition/latency.h"
#include "search/partition/stages.h"
#include "search/placement/quantity.h"
#include "search/plan/proved.h"
#include "search/shortest.h"
#include "search/simulate/simulate.h"

namespace ostinato {
namespace {

constexpr Nanoseconds kNone = std::numeric_limits<Nanoseconds>::max();
/// Nodes of branch and bound for one candidate with several chunks.
constexpr long kNodes = 300'000;
/// Chunks per device that are tried whatever fewer of them gave.
constexpr int kUsualChunks = 4;
/// A replay on shared processors is good to one part in so many.
constexpr Nanoseconds kReplayed = 100;
/// Percent of a search's usual work, by which a candidate is judged first.
constexpr int kShortEffort = 5;
/// Candidates with a plan that are searched with all the work.
constexpr std::size_t kSearchedWhole = 4;
/// Percent above the shortest plan, beyond which a candidate is not searched again with all the work.
constexpr Nanoseconds kWorthAll = 5;
/// Percent above the shortest plan, within which the bound of a placement on fewer devices lets it move.
constexpr Nanoseconds kNearest = 25;
/// Percentages of the memory, for which candidates that are short of it are cut again.
constexpr int kLessMemory[] = {90, 75, 60, 50, 35, 25};
/// Candidates that move, or are cut again, by the steps (blocks times micro-batches) of a schedule.
constexpr std::size_t kFewestMoved = 3, kMostMoved = 5, kMovedSteps = 2'000;

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

class Chooser {
 public:
  Chooser(const Profile& profile, const JointOptions& options, const Searcher& searcher)
      : profile_(profile), options_(options), searcher_(searcher) {}

  JointChoice choose() {
    check_partition(profile_, options_.partition);
    for (Candidate& candidate : joint::list_candidates(profile_, options_)) add(std::move(candidate));
    place_all();
    choice_.devices = static_cast<int>(cluster_of(options_.partition).devices.size());
    choice_.all_devices = options_.fewer_devices == FewerDevices::none && choice_.devices > 1;
    if (!choice_.all_devices) add_fewer();
    search_shortly();
    choice_.any_placement = bound_any_placement(profile_, options_, std::min(found_, upper_));
    cut_for_less();
    if (!sharing_) move_best();  // moves are judged as if every device had a processor of its own
    search_all();
    choice_.winner = best();
    hold_less(list()[choice_.winner]);
    list()[choice_.winner].plan->any_placement = choice_.any_placement;
    return std::move(choice_);
  }

 private:
  std::vector<Candidate>& list() { return choice_.candidates; }

  void add(Candidate candidate) {
    candidate.options.nodes = std::min(candidate.options.nodes, kNodes);
    list().push_back(std::move(candidate));
  }

  /// By what is known before a partition; the sooner a good placement is known, the more are dropped. More
  /// than kUsualChunks come last, and only while fewer of the same kind leave room.
  void place_all() {
    std::vector<Nanoseconds> bounds;
    for (const Candidate& candidate : list()) bounds.push_back(first_bound(candidate));
    std::vector<std::size_t> order(list().size());
    std::iota(order.begin(), order.end(), 0);
    const auto key = [&](std::size_t i) {
      const int chunks = list()[i].options.chunks;
      return std::pair(chunks <= kUsualChunks ? 0 : chunks, bounds[i]);
    };
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return key(a) < key(b); });
    for (const std::size_t i : order) {
      if (drop_by(list()[i], bounds[i], "its busiest device needs at least")) continue;
      if (const std::string reason = why_not_placed(list()[i]); !reason.empty()) {
        refuse(list()[i], reason, false);
        continue;
      }
      place(i);
      recompute_too(i);
    }
  }

  std::string why_not_placed(Candidate& candidate) {
    if (stopped()) return "not tried: interrupted";
    candidate.too_late = late(0.5);
    if (candidate.too_late) return "not tried: the time limit";
    if (candidate.options.chunks <= kUsualChunks) return "";
    const Candidate* fewer = nullptr;  // chunks, the most of the same kind
    for (const Candidate& other : list()) {
      const PartitionOptions &a = other.options, &b = candidate.options;
      const bool alike =
          a.layout == b.layout && a.sharded == b.sharded && a.split_backward == b.split_backward;
      if (alike && a.chunks > 1 && a.chunks < b.chunks &&
          (fewer == nullptr || a.chunks >= fewer->options.chunks))
        fewer = &other;
    }
    if (fewer == nullptr || (fewer->placement && fewer->bound <= upper_)) return "";
    return fmt::format("not tried: {} chunks left no room for more", fewer->options.chunks);
  }

  void recompute_too(std::size_t index) {
    if (!options_.recompute || options_.partition.inference || !short_of_memory(list()[index])) return;
    for (const Recompute how : {Recompute::needed, Recompute::partly}) {
      if (how == Recompute::partly && list()[index].graph) continue;
      add(joint::recomputing(list()[index], how));
      place(list().size() - 1);
    }
  }

  /// The latency of one micro-batch does not grow with what a device does for the others.
  Nanoseconds first_bound(const Candidate& candidate) const {
    if (objective() == Objective::latency) return 0;
    return joint::simple_bound(profile_, candidate, micro_batches());
  }

  bool short_of_memory(const Candidate& candidate) const {
    if (!candidate.cuts) return candidate.infeasible && joint::too_few_layers(profile_, candidate).empty();
    return candidate.cuts->in_flight <
           std::min<long>(micro_batches(), static_cast<long>(candidate.cuts->stages.size()));
  }

  /// While what the first d devices take at least leaves room.
  void add_fewer() {
    for (const int devices : joint::fewer_counts(profile_, options_)) {
      bool room = false;
      for (const bool split : joint::splits(profile_, options_)) room = add_fewer(devices, split) || room;
      if (!room) return;
    }
  }

  bool add_fewer(int devices, bool split) {
    Candidate candidate = joint::on_fewer(options_, devices, split);
    Candidate even = candidate;
    even.even = true;
    even.name = fmt::format("even split on {} of {} devices", devices, choice_.devices);
    const Nanoseconds bound = first_bound(candidate);
    if (!wanted(bound)) {
      if (devices > 1)
        candidate.name = fmt::format("1 chunk on 1 to {} of {} devices", devices, choice_.devices);
      drop_by(candidate, bound, "the busiest device needs at least");
      list().push_back(std::move(candidate));
      return false;
    }
    for (Candidate* one : {&candidate, &even}) {
      add(std::move(*one));
      place(list().size() - 1);
    }
    recompute_too(list().size() - 2);
    return true;
  }

  /// A schedule may hold more in flight than a cut for all of the memory leaves room for: what is best in
  /// less memory is tried in all of it.
  void cut_for_less() {
    std::vector<std::size_t> order =
        sorted([&](const Candidate& c) { return c.plan && is_cut(c) && lacks_memory(c); },
               [](const Candidate& c) { return c.value(); });
    if (order.size() > starts(order)) order.resize(starts(order));
    for (const std::size_t i : order) {
      for (const int percent : kLessMemory) {
        if (stopped() || late(0.5) || nothing_left()) return;
        cut_for_less(i, percent);
      }
    }
  }

  void cut_for_less(std::size_t index, int percent) {
    Candidate tighter = joint::recomputing(list()[index], list()[index].options.recompute);
    tighter.name = fmt::format("{}, cut for {} % of the memory", list()[index].name, percent);
    add(std::move(tighter));
    place(list().size() - 1, percent);
    if (!list().back().placement) return list().pop_back();
    SearchOptions quick = within_a_part(2 * kMostMoved * std::size(kLessMemory));
    quick.effort = kShortEffort;
    if (!drop_by(list().back(), list().back().bound, "proven bound")) search_one(list().back(), quick);
  }

  /// By memory, neither evenly nor for the latency.
  static bool is_cut(const Candidate& c) { return !c.even && !c.quick && c.cuts; }

  bool lacks_memory(const Candidate& c) const {
    return c.options.recompute != Recompute::never || short_of_memory(c);
  }

  /// The candidate's stages, cut for so much of every device's memory.
  StageCuts cut(const Candidate& candidate, int percent) const {
    const PartitionOptions options = joint::in_part_of_memory(candidate.options, percent);
    if (candidate.even) return cut_evenly(profile_, options);
    if (candidate.graph) return cut_graph(profile_, options);
    if (candidate.quick)
      return cut_for_latency(profile_, options, options_.fewer_devices != FewerDevices::every);
    return cut_chain(profile_, options);
  }

  /// Partitions, and bounds from both sides.
  void place(std::size_t index, int percent = 100) {
    Candidate& candidate = list()[index];
    const std::string missing = joint::too_few_layers(profile_, candidate);
    if (!missing.empty()) return refuse(candidate, missing, true);
    try {
      candidate.cuts = cut(candidate, percent);
    } catch (const InfeasibleError& error) {
      return refuse(candidate, error.what(), true);
    } catch (const InputError& error) {
      return refuse(candidate, error.what(), false);
    }
    for (const Candidate& other : list()) {
      if (&other == &candidate || !other.placement || other.cuts->stages != candidate.cuts->stages) continue;
      if (other.placement->devices.size() != cluster_of(candidate.options).devices.size()) continue;
      if (other.options.split_backward != candidate.options.split_backward) continue;
      candidate.no_shorter = true;
      return refuse(candidate, "the same stages as " + other.name, false);
    }
    Placement placed = place_stages(profile_, candidate.options, candidate.cuts->stages);
    if (!step_fits(facts_of(profile_, candidate.options, candidate.cuts->stages), placed))
      return refuse(candidate, "the optimizer's step needs more memory than a device has", true);
    candidate.placement = std::move(placed);
    candidate.bound = Bounds(Instance(*candidate.placement)).of(objective(), micro_batches());
    if (sharing_)
      candidate.bound = std::max(candidate.bound, shared_work(*candidate.placement, micro_batches()));
    if (options_.search.method != "auto" || sharing_) return;  // that alone is never behind them
    for (const Reference& named : references(*candidate.placement, micro_batches(), objective())) {
      if (named.fits) upper_ = std::min(upper_, named.value);
    }
  }

  /// In the order of their bounds, so that the first plans drop most of the others.
  void search_shortly() {
    const std::vector<std::size_t> order = sorted([](const Candidate& c) { return c.placement.has_value(); },
                                                  [](const Candidate& c) { return c.bound; });
    for (std::size_t i = 0; i < order.size(); ++i) {
      Candidate& candidate = list()[order[i]];
      if (drop_by(candidate, candidate.bound, "proven bound")) continue;
      if (stopped()) {
        refuse(candidate, "not tried: interrupted", false);
        continue;
      }
      SearchOptions quick = within_a_part(2 * wanted_from(order, i));
      quick.effort = kShortEffort;
      search_one(candidate, quick);
    }
  }

  /// What may still become the best, the shortest first; of those with a plan no more than kSearchedWhole.
  void search_all() {
    const auto open = [&](const Candidate& c) {
      if (!c.placement || c.no_shorter || c.infeasible) return false;
      return c.bound < found_ && !(c.plan && is_optimal(*c.plan));
    };
    const std::vector<std::size_t> order =
        sorted(open, [](const Candidate& c) { return c.plan ? c.value() : kNone; });
    for (std::size_t i = 0; i < order.size() && !stopped() && !nothing_left(); ++i) {
      Candidate& candidate = list()[order[i]];
      if (candidate.plan && (i >= kSearchedWhole || !worth_all(candidate))) continue;
      SearchOptions all = within_a_part(order.size() - i);
      if (candidate.plan && candidate.value() > found_) all.below = found_;
      if (candidate.plan ? open(candidate) : !drop_by(candidate, candidate.bound, "proven bound"))
        search_one(candidate, all);
    }
  }

  bool worth_all(const Candidate& candidate) const {
    return candidate.value() - found_ <= found_ / 100 * kWorthAll;
  }

  /// A plan is as short as any of any placement.
  bool nothing_left() const { return found_ != kNone && found_ <= choice_.any_placement.lower_bound; }

  /// Indices of the candidates that `take` accepts, by `key`.
  template <class Take, class Key>
  std::vector<std::size_t> sorted(Take take, Key key) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < list().size(); ++i)
      if (take(list()[i])) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return key(list()[a]) < key(list()[b]); });
    return order;
  }

  /// More than this share of the time limit is over.
  bool late(double share) const {
    const double limit = options_.search.time_limit_seconds;
    return limit > 0 && seconds_since(began_) > share * limit;
  }

  bool stopped() {
    if (options_.search.stop == nullptr || !options_.search.stop->load(std::memory_order_relaxed))
      return false;
    choice_.interrupted = true;
    return true;
  }

  /// The options of one of `parts` searches that share what is left of the time.
  SearchOptions within_a_part(std::size_t parts) const {
    SearchOptions search = left_after(options_.search, std::chrono::steady_clock::now() - began_);
    if (search.time_limit_seconds > 0)
      search.time_limit_seconds = std::max(1e-3, search.time_limit_seconds / static_cast<double>(parts));
    return search;
  }

  /// The shortest plans so far, whose stages are runs of layers, move; each makes a candidate of its own.
  void move_best() {
    if (!options_.moves || objective() == Objective::latency || nothing_left()) return;
    std::vector<std::size_t> order = sorted([](const Candidate& c) { return c.plan && !c.graph; },
                                            [](const Candidate& c) { return c.value(); });
    keep_starts(order);
    std::optional<std::chrono::steady_clock::time_point> until;
    if (const double limit = options_.search.time_limit_seconds; limit > 0)
      until = began_ + std::chrono::milliseconds(static_cast<long>(limit * 750));
    for (const std::size_t i : order) {
      if (stopped() || nothing_left()) return;
      if (std::optional<Candidate> moved = joint::climb(profile_, options_, list()[i], until))
        add_moved(std::move(*moved));
    }
    for (const bool split : joint::splits(profile_, options_)) {
      move_coarsest(split, until);
      if (!free_transfers()) move_on_fewer(split, until);
    }
  }

  bool free_transfers() const { return LinkTable(profile_, cluster_of(options_.partition)).free(); }

  /// A placement with few blocks on all devices is often ruled out as it stands, and yet a few moves from the
  /// best: those from many chunks make blocks shorter, and none makes them fewer at the same time.
  void move_coarsest(bool split, std::optional<std::chrono::steady_clock::time_point> until) {
    const Candidate* coarsest = nullptr;
    for (const Candidate& c : list()) {
      if (!c.placement || c.graph || c.options.split_backward != split) continue;
      const auto order = [](const Candidate& of) {
        return std::pair(-of.devices(), of.placement->blocks.size());
      };
      if (coarsest == nullptr || order(c) < order(*coarsest)) coarsest = &c;
    }
    if (coarsest != nullptr && coarsest->plan == std::nullopt) move_ruled_out(*coarsest, until);
  }

  /// So is one on fewer devices, where transfers take time: of each number the nearest, unless one has a
  /// plan.
  void move_on_fewer(bool split, std::optional<std::chrono::steady_clock::time_point> until) {
    const auto eligible = [&](const Candidate& c) {
      return c.placement && !c.graph && c.options.split_backward == split && c.devices() < choice_.devices;
    };
    std::set<int> known;  // numbers of devices that a plan has
    for (const Candidate& c : list())
      if (eligible(c) && c.plan) known.insert(c.devices());
    std::vector<Candidate> starts;
    for (const std::size_t i : sorted(eligible, [](const Candidate& c) { return c.bound; })) {
      const Candidate& c = list()[i];
      if (starts.size() < kFewestMoved && c.bound - found_ <= found_ / 100 * kNearest &&
          known.insert(c.devices()).second)
        starts.push_back(c);
    }
    for (Candidate& start : starts) move_ruled_out(std::move(start), until);
  }

  void move_ruled_out(Candidate start, std::optional<std::chrono::steady_clock::time_point> until) {
    if (stopped() || nothing_left()) return;
    SearchOptions quick = within_a_part(4);
    quick.effort = kShortEffort;
    search_one(start, quick);
    if (!start.plan) return;
    start.no_shorter = false;
    std::optional<Candidate> moved = joint::climb(profile_, options_, start, until);
    if (moved && moved->value() <= found_) add_moved(std::move(*moved));
  }

  /// The first few, and of each kind the first: what may be chosen beside it must not take its place.
  void keep_starts(std::vector<std::size_t>& order) {
    std::set<std::tuple<bool, bool, bool>> kinds;
    const std::size_t most = starts(order);
    std::size_t place = 0;
    std::erase_if(order, [&](std::size_t i) {
      const Candidate& c = list()[i];
      const bool first = kinds
                             .emplace(c.options.split_backward, c.devices() == choice_.devices,
                                      c.options.recompute != Recompute::never)
                             .second;
      return place++ >= most && !first;
    });
  }

  /// More where a search takes no time.
  std::size_t starts(const std::vector<std::size_t>& order) {
    if (order.empty()) return 0;
    const std::size_t blocks = list()[order.front()].placement->blocks.size();
    const std::size_t steps = std::max<std::size_t>(1, blocks * static_cast<std::size_t>(micro_batches()));
    return std::clamp(kMovedSteps / steps, kFewestMoved, kMostMoved);
  }

  void add_moved(Candidate moved) {
    for (const Candidate& other : list()) {
      if (other.moved && other.cuts->stages == moved.cuts->stages && other.value() <= moved.value()) return;
    }
    moved.moved = true;
    moved.name += ", moved";
    found_ = std::min(found_, moved.value());
    add(std::move(moved));
  }

  std::size_t wanted_from(const std::vector<std::size_t>& order, std::size_t first) {
    return static_cast<std::size_t>(std::count_if(order.begin() + static_cast<std::ptrdiff_t>(first),
                                                  order.end(),
                                                  [&](std::size_t i) { return wanted(list()[i].bound); }));
  }

  /// A plan that the candidate has stays where it is as short.
  void search_one(Candidate& candidate, const SearchOptions& options) {
    const auto began = std::chrono::steady_clock::now();
    const auto give_up = [&](const std::string& why, bool infeasible) {
      if (!candidate.plan) refuse(candidate, why, infeasible);
    };
    try {
      consider(candidate, searcher_ ? searcher_(*candidate.placement, options, candidate.name)
                                    : shortest_plan(*candidate.placement, options));
      if (sharing_) consider_1f1b(candidate, options);
      candidate.why_not.clear();
      found_ = std::min(found_, candidate.value());
    } catch (const InfeasibleError& error) {
      give_up(error.what(), true);
    } catch (const std::runtime_error& error) {  // no order found, and no proof that there is none
      give_up(error.what(), false);
    }
    candidate.seconds += seconds_since(began);
  }

  /// Keeps the plan where it is shorter than the candidate's, or as short and more of it proved.
  void consider(Candidate& candidate, Plan plan) const {
    const Placement& placement = *candidate.placement;
    const Nanoseconds shared = sharing_ ? replayed_makespan(placement, micro_batches(), plan.schedule) : 0;
    const Nanoseconds value = sharing_ ? shared : objective_value(plan, placement);
    if (candidate.plan && value > candidate.value()) return;
    if (candidate.plan && value == candidate.value() && bound_of(plan) <= bound_of(*candidate.plan)) return;
    candidate.plan = std::move(plan);
    candidate.shared = shared;
  }

  /// On shared processors an order that keeps devices busier gains less, and may lose.
  void consider_1f1b(Candidate& candidate, SearchOptions options) const {
    options.method = "1f1b";
    try {
      consider(candidate, shortest_plan(*candidate.placement, options));
    } catch (const std::runtime_error&) {  // these stages have none, or it does not fit the memory
      return;
    }
  }

  /// Whether a candidate with this bound may still win: a plan of this value was not found yet, and no named
  /// schedule is below it.
  bool wanted(Nanoseconds bound) const { return bound < found_ && bound <= upper_; }

  /// True if the bound leaves no room: the candidate then says so.
  bool drop_by(Candidate& candidate, Nanoseconds bound, const std::string& what) {
    if (wanted(bound)) return false;
    candidate.bound = bound;
    candidate.no_shorter = true;
    refuse(candidate,
           fmt::format("{} {}, {} reached", what, format_time(bound), format_time(std::min(found_, upper_))),
           false);
    return true;
  }

  static void refuse(Candidate& candidate, const std::string& reason, bool infeasible) {
    candidate.why_not = reason;
    candidate.infeasible = infeasible;
  }

  /// What the optimizer adds to the plan's step.
  Nanoseconds after_it(const Candidate& c) const {
    if (objective() != Objective::makespan) return 0;
    const std::vector<Nanoseconds> times = facts_of(profile_, c.options, c.cuts->stages).step_time;
    if (times.empty()) return 0;
    const auto step = [&](const std::vector<Nanoseconds>& of) {
      return whole_step(*c.placement, micro_batches(), c.plan->schedule, of);
    };
    return step(times) - step({});
  }

  /// As short a step in less memory.
  void hold_less(Candidate& candidate) const {
    const Candidate before = candidate;
    candidate.plan = in_less_memory(*candidate.placement, within_a_part(1), *candidate.plan);
    if (sharing_)
      candidate.shared = replayed_makespan(*candidate.placement, micro_batches(), candidate.plan->schedule);
    if (candidate.value() + after_it(candidate) > before.value() + after_it(before)) candidate = before;
  }

  /// The shortest with its optimizer's step; of several, one with fewest blocks. On shared processors one
  /// with fewest blocks of those that are as short but for what a replay does not know: each block more is
  /// one more change of thread.
  std::size_t best() {
    std::size_t best = list().size();
    const Nanoseconds as_short = sharing_ && found_ != kNone ? found_ + found_ / kReplayed : 0;
    const auto key = [&](const Candidate& c) {
      return std::tuple(std::max(c.value(), as_short) + after_it(c), c.placement->blocks.size(), c.value());
    };
    decltype(key(list().front())) least;
    for (std::size_t i = 0; i < list().size(); ++i) {
      if (!list()[i].plan) continue;
      const auto its = key(list()[i]);
      if (best == list().size() || its < least) std::tie(best, least) = std::pair(i, its);
    }
    if (best < list().size()) return best;
    std::string reasons;
    for (const Candidate& c : list()) reasons += fmt::format("\n  {}: {}", c.name, c.why_not);
    const std::string message = "no placement that was tried has a plan:" + reasons;
    if (std::all_of(list().begin(), list().end(), [](const Candidate& c) { return c.infeasible; }))
      throw InfeasibleError(message);
    throw InputError("", 0, message);
  }

  int micro_batches() const { return options_.search.micro_batches; }
  Objective objective() const { return options_.search.objective; }

  const Profile& profile_;
  const JointOptions& options_;
  const Searcher& searcher_;
  const bool sharing_ = objective() == Objective::makespan &&
                        !cluster_of(options_.partition).hosts(profile_.rank.computing).empty();
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  JointChoice choice_;
  Nanoseconds upper_ = kNone;  ///< a named schedule of some candidate takes this long
  Nanoseconds found_ = kNone;  ///< a plan takes this long
};

}  // namespace

Nanoseconds Candidate::value() const { return shared > 0 ? shared : objective_value(*plan, *placement); }

int Candidate::devices() const { return static_cast<int>(cluster_of(options).devices.size()); }

JointChoice choose_plan(const Profile& profile, const JointOptions& options, const Searcher& searcher) {
  return Chooser(profile, options, searcher).choose();
}

}  // namespace ostinato
