// SPDX-License-Identifier: Apache-2.0
#pragma once
// The candidates of a joint choice as they are judged: placed, bounded from both sides, searched, and dropped
// where what is known so far leaves them no room. Private to search/partition.
//
//   Judged judged(profile, options, searcher);
//   judged.add_placed(candidate);
//   if (judged.wanted(judged.list().back().bound)) judged.search(judged.list().back(), judged.shortly(2));
//   Candidate& best = judged.list()[judged.best()];

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "search/partition/joint.h"

namespace ostinato::joint {

inline constexpr Nanoseconds kNone = std::numeric_limits<Nanoseconds>::max();

class Judged {
 public:
  using Clock = std::chrono::steady_clock;

  /// Only plans below `below` are wanted.
  Judged(const Profile& profile, const JointOptions& options, const Searcher& searcher,
         Nanoseconds below = kNone);

  const Profile& profile() const { return profile_; }
  const JointOptions& options() const { return options_; }
  int micro_batches() const { return options_.search.micro_batches; }
  Objective objective() const { return options_.search.objective; }
  /// Devices share processors: a plan's value is then its replay's value.
  bool sharing() const { return sharing_; }

  std::vector<Candidate>& list() { return list_; }

  /// Indices of the candidates that `take` accepts, by `key`.
  template <class Take, class Key>
  std::vector<std::size_t> sorted(Take take, Key key) const {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < list_.size(); ++i)
      if (take(list_[i])) order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [&](auto a, auto b) { return key(list_[a]) < key(list_[b]); });
    return order;
  }

  void add(Candidate candidate);
  void add_placed(Candidate candidate, int percent = 100);
  /// One that already has a plan.
  void add_planned(Candidate candidate);

  /// Partitions within this many percent of the memory, unless it has cuts, and bounds from both sides, in a
  /// small part of the time that is left, unless the candidate is needed(). No placement: `why_not` says why.
  void place(std::size_t index, int percent = 100);
  /// To be placed, or searched, whatever the clock says: so that there is a plan, and none that is longer
  /// than what it is shown beside, 1F1B on an even split and on the best stages, if these are known
  /// (is_usual()).
  bool needed(const Candidate& candidate) const;
  /// No plan of the candidate is shorter; known before it is placed.
  Nanoseconds first_bound(const Candidate& candidate) const;
  /// Its memory holds fewer micro-batches than keep all devices busy.
  bool short_of_memory(const Candidate& candidate) const;

  /// The value of the shortest plan so far, or what is to be beaten; kNone: any.
  Nanoseconds found() const { return found_; }
  /// The value of the shortest named schedule of a candidate; kNone: of none.
  Nanoseconds upper() const { return upper_; }
  /// The less of both.
  Nanoseconds reached() const { return std::min(found_, upper_); }
  /// Whether a candidate with this bound may still win: a plan of this value was not found yet, and no named
  /// schedule is below it.
  bool wanted(Nanoseconds bound) const { return bound < found_ && bound <= upper_; }
  /// True if the bound leaves no room: the candidate then says so.
  bool drop_by(Candidate& candidate, Nanoseconds bound, const std::string& what) const;
  static void refuse(Candidate& candidate, const std::string& reason, bool infeasible);

  /// Finds a plan for a candidate that is placed, which keeps the one it has unless the new one is shorter.
  void search(Candidate& candidate, const SearchOptions& options);
  /// Where the shortest named schedule is shorter than any plan that was found, its candidate takes it.
  void take_upper();
  /// As short a step in less memory, or for times that vary.
  void hold_less(Candidate& candidate) const;
  /// The shortest with its optimizer's step; of several, one with fewest blocks. On shared processors one
  /// with fewest blocks among plans as short, up to what a replay does not know: each more block is one more
  /// change of thread. list().size(): none has a plan.
  std::size_t best() const;
  std::size_t shortest() const;  ///< the one with the least whole_value(); some have a plan
  /// What no plan is to be longer than: 1F1B, as is_usual() says, which is no shorter than this.
  Nanoseconds least_usual() const;
  /// The plan's value, and what the optimizer's step adds to it.
  Nanoseconds whole_value(const Candidate& candidate) const;

  /// More than this share of the time limit is over.
  bool late(double share) const;
  bool stop_asked() const;
  /// The same two, noted as what left work undone (JointChoice::cut_short, interrupted). out_of_time() is for
  /// work other than a candidate, which says itself that it is too_late.
  bool out_of_time(double share);
  bool stopped();
  bool cut_short() const { return cut_short_; }
  bool interrupted() const { return interrupted_; }
  /// When this share of the time limit is over; nullopt: there is none.
  std::optional<Clock::time_point> at_share(double share) const;
  /// The options of one of `parts` searches that share what is left of the time.
  SearchOptions within_a_part(std::size_t parts) const;
  /// The same with a small part of the work, by which a candidate is judged first.
  SearchOptions shortly(std::size_t parts) const;

 private:
  StageCuts cut(const Candidate& candidate, int percent, std::function<bool()> stop) const;
  std::vector<std::vector<int>> usual_sizes(Recompute most, LanesOf lanes) const;
  const Candidate* with_the_same_stages(const Candidate& candidate) const;
  bool any_fits() const;
  void take_named(std::size_t index, std::optional<Clock::time_point> end);
  std::optional<Clock::time_point> after_a_part(double part) const;
  void consider(Candidate& candidate, Plan plan) const;
  void consider_1f1b(Candidate& candidate, SearchOptions options) const;

  const Profile& profile_;
  const JointOptions& options_;
  const Searcher& searcher_;
  const bool sharing_;
  const Clock::time_point began_ = Clock::now();
  std::vector<Candidate> list_;
  Nanoseconds upper_ = kNone;  ///< a named schedule of some candidate takes this long
  struct {
    std::size_t candidate = 0;
    std::string schedule = {};
  } upper_of_;
  const Nanoseconds below_;
  Nanoseconds found_;
  bool cut_short_ = false, interrupted_ = false;
};

}  // namespace ostinato::joint
