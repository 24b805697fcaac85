// SPDX-License-Identifier: Apache-2.0
// What choose() does, in this order:
// 1. All candidates are listed, bounded and placed, the cheapest first; then those on fewer devices; then
//    each is searched briefly, in the order of the bounds, so that the first plans rule out most of the rest.
//    Where nothing fits, stages are packed by their memory (any_fit.h).
// 2. The bound over all placements. A plan that meets it ends the search.
// 3. improve() (joint_improve.h): cuts for less memory, full searches, and moves.
// 4. The winner. If the profile's times do not tell two steps apart, one with losses equal to 1F1B's is
//    preferred, and then the one with the fewest blocks. Last, the winner holds less memory (leaner.h).
// Every part asks whether time is up, and what was left out for that is told.
#include "search/partition/joint.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "search/files/counted.h"
#include "search/files/error.h"
#include "search/named/references.h"
#include "search/partition/any_fit.h"
#include "search/partition/any_placement.h"
#include "search/partition/joint_candidates.h"
#include "search/partition/joint_improve.h"
#include "search/partition/joint_judged.h"
#include "search/profile/profile_noise.h"

namespace ostinato {
namespace {

using joint::Judged;
using joint::kNone;

/// Chunks per device that are tried whatever fewer of them gave.
constexpr int kUsualChunks = 4;
/// The share of the time limit after which nothing is placed.
constexpr double kPlacedBy = 0.5;
/// The most by which a plan may be longer than the shortest because its losses are equal to 1F1B's, or its
/// blocks fewer.
constexpr double kMostUnknown = 0.01;

class Chooser {
 public:
  Chooser(const Profile& profile, const JointOptions& options, const Searcher& searcher,
          Nanoseconds below = kNone)
      : profile_(profile),
        options_(options),
        searcher_(searcher),
        judged_(profile, options, searcher, below),
        lanes_(has_lanes(profile, options.partition)) {}

  JointChoice choose() {
    place_and_search();
    choice_.any_placement = bound_any_placement(profile_, options_, judged_.reached());
    choice_.least_times = least_times(profile_, options_);
    joint::improve(judged_, choice_.any_placement.lower_bound);
    find_winner();
    if (choice_.winner == list().size()) throw_reasons();
    prefer_exact();
    prefer_fewer();
    if (!judged_.out_of_time(1)) judged_.hold_less(best());
    judged_.out_of_time(1);
    choice_.cut_short |= judged_.cut_short();
    choice_.interrupted = judged_.interrupted();
    best().plan->any_placement = choice_.any_placement;
    for (Candidate& candidate : list())
      if (candidate.plan) candidate.step = judged_.whole_value(candidate);
    choice_.not_tried = joint::that_cut(profile_, options_, list());
    choice_.candidates = std::move(list());
    return std::move(choice_);
  }

 private:
  std::vector<Candidate>& list() { return judged_.list(); }
  Candidate& best() { return list()[choice_.winner]; }

  void place_and_search() {
    check_partition(profile_, options_.partition);
    for (Candidate& candidate : joint::list_candidates(profile_, options_)) judged_.add(std::move(candidate));
    place_all();
    choice_.devices = static_cast<int>(cluster_of(options_.partition).devices.size());
    choice_.all_devices = options_.fewer_devices == FewerDevices::none && choice_.devices > 1;
    if (!choice_.all_devices) add_fewer();
    search_shortly();
    if (judged_.reached() == kNone && !judged_.stopped()) add_packed();
  }

  /// Where neither runs of layers in the order of the devices nor stages over the graph fit.
  void add_packed() {
    for (const Recompute how : {Recompute::never, Recompute::needed}) {
      const bool recompute = how != Recompute::never;
      if (recompute && (!options_.recompute || options_.partition.inference)) return;
      Candidate candidate;
      candidate.name = recompute ? "stages by memory, recompute" : "stages by memory";
      candidate.options = options_.partition;
      candidate.options.chunks = 1;
      candidate.options.sharded.clear();
      candidate.options.recompute = how;
      candidate.moved = true;  // a device may have any number of stages
      std::optional<std::vector<Stage>> stages = stages_that_fit(profile_, candidate.options);
      if (!stages) continue;
      candidate.cuts = StageCuts{.stages = std::move(*stages)};
      judged_.add_placed(std::move(candidate));
      if (list().back().placement) judged_.search(list().back(), judged_.within_a_part(2));
      if (list().back().plan) return;
    }
  }

  bool was_cut() {
    return judged_.cut_short() || choice_.cut_short ||
           std::any_of(list().begin(), list().end(), [](const Candidate& c) { return c.cut || c.too_late; });
  }

  /// Of two steps that the profile's times do not tell apart, the one with losses equal to 1F1B's.
  void prefer_exact() {
    const double unknown = std::min(kMostUnknown, unknown_share(profile_));
    const bool asked_for = options_.partition.split_backward || options_.partition.inference;
    if (best().keeps_losses() || unknown <= 0 || asked_for || judged_.stopped() || judged_.out_of_time(1))
      return;
    const std::size_t shortest = judged_.shortest();
    const auto step = static_cast<double>(judged_.whole_value(list()[shortest]));
    const auto most = static_cast<Nanoseconds>(step * (1 + unknown));
    JointOptions exact = options_;
    exact.restrictions.push_back({Rule::whole_backwards, "losses equal to 1F1B's"});
    exact.shardable.clear();
    exact.search = judged_.within_a_part(1);
    Chooser chooser(profile_, exact, searcher_, most + 1);
    std::optional<Candidate> found = chooser.best_below(choice_.any_placement);
    choice_.cut_short |= chooser.was_cut();
    if (!found || judged_.whole_value(*found) > most) return;
    choice_.shortest = shortest;
    const auto same =
        std::find_if(list().begin(), list().end(), [&](const Candidate& c) { return c.name == found->name; });
    choice_.winner = static_cast<std::size_t>(same - list().begin());
    if (same == list().end()) {
      judged_.add(std::move(*found));
    } else {
      *same = std::move(*found);
    }
  }

  /// Of steps on the same devices that the profile's times do not tell apart, the one with the fewest blocks:
  /// what each block costs beside its layers is known less well than they are. None is longer for it than
  /// what it is shown beside.
  void prefer_fewer() {
    const double unknown = std::min(kMostUnknown, unknown_share(profile_));
    const bool judged = judged_.objective() == Objective::makespan && !judged_.sharing();
    if (unknown <= 0 || !judged || judged_.stopped() || judged_.out_of_time(1)) return;
    const std::size_t shortest = choice_.shortest.value_or(choice_.winner);
    const auto step = static_cast<double>(judged_.whole_value(list()[shortest]));
    const auto most = static_cast<Nanoseconds>(step * (1 + unknown));
    search_fewer(most);
    const Nanoseconds longest = std::max(list()[shortest].value(), judged_.least_usual());
    const auto key = [&](const Candidate& c) {
      return std::pair(c.placement->blocks.size(), judged_.whole_value(c));
    };
    for (std::size_t i = 0; i < list().size(); ++i) {
      const Candidate& c = list()[i];
      if (c.plan && may_replace_best(c) && c.value() <= longest && judged_.whole_value(c) <= most &&
          key(c) < key(best()))
        choice_.winner = i;
    }
    if (choice_.winner != shortest) choice_.shortest = shortest;
  }

  bool may_replace_best(const Candidate& c) {
    return c.idle == best().idle && (c.keeps_losses() || !best().keeps_losses());
  }

  /// Those that a bound ruled out, but not by so much.
  void search_fewer(Nanoseconds most) {
    const std::vector<std::size_t> order = judged_.sorted(
        [&](const Candidate& c) {
          return c.placement && !c.plan && c.no_shorter && c.bound <= most && may_replace_best(c) &&
                 c.placement->blocks.size() < best().placement->blocks.size();
        },
        [](const Candidate& c) { return c.placement->blocks.size(); });
    for (std::size_t i = 0; i < order.size() && !judged_.stopped() && !judged_.out_of_time(1); ++i) {
      Candidate& candidate = list()[order[i]];
      judged_.search(candidate, judged_.shortly(order.size() - i));
      candidate.no_shorter = !candidate.plan;
    }
  }

  /// What choose() finds of plans below a value; nullopt: none. `any`: of more candidates than these.
  std::optional<Candidate> best_below(const AnyPlacement& any) {
    choice_.any_placement = any;
    place_and_search();
    joint::improve(judged_, choice_.any_placement.lower_bound);
    find_winner();
    if (choice_.winner == list().size()) return std::nullopt;
    return std::move(best());
  }

  void find_winner() {
    judged_.take_upper();
    choice_.winner = judged_.best();
  }

  [[noreturn]] void throw_reasons() {
    std::string message = "none of the placements tried has a plan:";
    std::set<std::string> told;
    for (const Candidate& c : list()) {
      if (!told.insert(c.why_not).second) continue;
      const auto same = std::count_if(list().begin(), list().end(),
                                      [&](const Candidate& other) { return other.why_not == c.why_not; });
      message += fmt::format("\n  {}{}: {}", c.name, same > 1 ? fmt::format(" and {} more", same - 1) : "",
                             c.why_not);
    }
    const std::string proof = why_nothing_fits(profile_, options_);
    if (!proof.empty()) throw InfeasibleError(fmt::format("{}\nno placement fits: {}", message, proof));
    // One with the same stages as another has the other's reason, as have stages for 1F1B, made from others.
    const auto is_wrong = [](const Candidate& c) {
      return c.wrong_input || c.forbidden || c.no_shorter || c.usual;
    };
    if (std::ranges::all_of(list(), is_wrong)) throw InputError("", 0, message);
    throw UndecidedError(message + "\nit is not proved that no other placement fits");
  }

  /// First what costs least to try, and then by what is known before a partition: the sooner a good placement
  /// is known, the more are dropped. More than kUsualChunks come last, and only while fewer of the same kind
  /// leave room.
  void place_all() {
    std::vector<Nanoseconds> bounds;
    for (const Candidate& candidate : list()) bounds.push_back(judged_.first_bound(candidate));
    std::vector<std::size_t> order(list().size());
    std::iota(order.begin(), order.end(), 0);
    const auto key = [&](std::size_t i) { return std::pair(effort_of(list()[i]), bounds[i]); };
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return key(a) < key(b); });
    for (const std::size_t i : order) {
      if (judged_.drop_by(list()[i], bounds[i], "its busiest device needs at least")) continue;
      if (const std::string reason = why_not_placed(list()[i]); !reason.empty()) {
        judged_.refuse(list()[i], reason, false);
        continue;
      }
      judged_.place(i);
      recompute_too(i);
    }
  }

  /// What its cuts cost, as a rank: the best of one chunk per device little, and an even split, which may be
  /// the same stages, nothing; cuts for 1F1B begin with these; several chunks take a search, longer the more
  /// there are.
  static int effort_of(const Candidate& candidate) {
    const int chunks = candidate.options.chunks;
    if (candidate.even) return 1;
    if (chunks > 1) return chunks <= kUsualChunks ? 3 : chunks;
    return candidate.graph || candidate.quick || candidate.usual ? 2 : 0;
  }

  std::string why_not_placed(Candidate& candidate) {
    if (judged_.stopped()) return "not tried: interrupted";
    candidate.too_late = judged_.late(kPlacedBy) && !judged_.needed(candidate);
    if (candidate.too_late) return "not tried: the time limit";
    if (candidate.options.chunks <= kUsualChunks) return "";
    const Candidate* fewer = nullptr;  // chunks, the most of the same kind
    for (const Candidate& other : list()) {
      const PartitionOptions &a = other.options, &b = candidate.options;
      const bool alike = a.layout == b.layout && a.order == b.order && a.sharded == b.sharded &&
                         a.split_backward == b.split_backward;
      if (alike && a.chunks > 1 && a.chunks < b.chunks &&
          (fewer == nullptr || a.chunks >= fewer->options.chunks))
        fewer = &other;
    }
    if (fewer == nullptr || (fewer->placement && fewer->bound <= judged_.upper())) return "";
    return "not tried: with fewer chunks it already does not fit, or cannot win";
  }

  void recompute_too(std::size_t index) {
    if (!options_.recompute || options_.partition.inference || !is_short(list()[index])) return;
    for (const Recompute how : {Recompute::needed, Recompute::partly}) {
      if (how == Recompute::partly && (list()[index].graph || list()[index].usual)) continue;
      judged_.add_placed(joint::recomputing(list()[index], how));
      if (!lanes_ || list()[index].usual || list()[index].options.lanes == LanesOf::none) continue;
      Candidate beside = joint::recomputing(list()[index], how);
      beside.name += ", lanes too";
      beside.options.lanes = LanesOf::all;
      judged_.add_placed(std::move(beside));
    }
  }

  /// Stages for 1F1B hold as many in flight as it does, whether they fit or not.
  bool is_short(const Candidate& candidate) {
    if (!candidate.usual) return judged_.short_of_memory(candidate);
    return std::ranges::any_of(list(), [&](const Candidate& other) {
      return is_usual(other, options_.partition) && judged_.short_of_memory(other);
    });
  }

  void add_fewer() {
    std::set<std::vector<int>> known;  // devices that stay idle
    for (const joint::DeviceOrder& order : joint::device_orders(cluster_of(options_.partition)))
      add_fewer(order, known);
  }

  /// While what the first d devices of the order take at least leaves room.
  void add_fewer(const joint::DeviceOrder& order, std::set<std::vector<int>>& known) {
    for (const int devices : joint::fewer_counts(profile_, options_)) {
      std::vector<Candidate> made;
      for (const bool split : joint::splits(profile_, options_))
        made.push_back(joint::on_fewer(options_, order, devices, split));
      if (!known.insert(made.front().idle).second) continue;
      bool room = false;
      for (Candidate& candidate : made) room = add_fewer(std::move(candidate), order.name) || room;
      if (!room) return;
    }
  }

  bool add_fewer(Candidate candidate, const std::string& order) {
    const int devices = candidate.devices();
    Candidate even = candidate;
    even.even = true;
    even.name = fmt::format("even split on {} of {}{}", devices, counted(choice_.devices, "device"), order);
    const Nanoseconds bound = judged_.first_bound(candidate);
    if (!judged_.wanted(bound)) {
      if (devices > 1)
        candidate.name =
            fmt::format("1 chunk on 1 to {} of {}{}", devices, counted(choice_.devices, "device"), order);
      judged_.drop_by(candidate, bound, "the busiest device needs at least");
      list().push_back(std::move(candidate));
      return false;
    }
    for (Candidate* one : {&candidate, &even}) {
      judged_.add(std::move(*one));
      if (const std::string reason = why_not_placed(list().back()); !reason.empty()) {
        judged_.refuse(list().back(), reason, false);
      } else {
        judged_.place(list().size() - 1);
      }
    }
    recompute_too(list().size() - 2);
    return true;
  }

  /// In the order of their bounds, so that the first plans rule out most of the rest.
  void search_shortly() {
    const std::vector<std::size_t> order =
        judged_.sorted([](const Candidate& c) { return c.placement.has_value(); },
                       [](const Candidate& c) { return c.bound; });
    for (std::size_t i = 0; i < order.size(); ++i) {
      Candidate& candidate = list()[order[i]];
      if (judged_.drop_by(candidate, candidate.bound, "proven bound")) continue;
      if (!judged_.needed(candidate) && (judged_.stopped() || judged_.late(1))) {
        candidate.too_late = !judged_.stopped();
        judged_.refuse(candidate, candidate.too_late ? "not tried: the time limit" : "not tried: interrupted",
                       false);
        continue;
      }
      judged_.search(candidate, judged_.shortly(2 * wanted_from(order, i)));
    }
  }

  std::size_t wanted_from(const std::vector<std::size_t>& order, std::size_t first) {
    return static_cast<std::size_t>(
        std::count_if(order.begin() + static_cast<std::ptrdiff_t>(first), order.end(),
                      [&](std::size_t i) { return judged_.wanted(list()[i].bound); }));
  }

  const Profile& profile_;
  const JointOptions& options_;
  const Searcher& searcher_;
  Judged judged_;
  const bool lanes_;  ///< some layers run on lanes
  JointChoice choice_;
};

}  // namespace

Nanoseconds Candidate::value() const { return shared > 0 ? shared : objective_value(*plan, *placement); }

int Candidate::devices() const { return static_cast<int>(cluster_of(options).devices.size()); }

bool is_usual(const Candidate& c, const PartitionOptions& asked, Recompute most) {
  return c.options.chunks == 1 && !c.graph && !c.quick && !c.moved && c.idle.empty() &&
         c.options.sharded.empty() && c.options.recompute <= most &&
         c.options.split_backward == asked.split_backward;
}

bool Candidate::keeps_losses() const { return !options.split_backward && options.sharded.empty(); }

JointChoice choose_plan(const Profile& profile, const JointOptions& options, const Searcher& searcher) {
  return Chooser(profile, options, searcher).choose();
}

}  // namespace ostinato
