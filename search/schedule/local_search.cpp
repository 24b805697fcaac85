// SPDX-License-Identifier: Apache-2.0
// 1. find_candidates(): in every critical run, neighbours change places, and steps near the ends of the run
//    (kLongestRun) move to that end; only moves that keep the memory. Each has an estimate of the objective.
// 2. step(): the least estimate first, ties at random, takes the first move that is not tabu or that
//    promises a schedule better than the best. apply() refuses moves that would close a circle; then the
//    next one is tried, and at last any move.
// 3. What a move turned round must stay so for kTenure moves or some more.
// 4. After kPatience moves without a better schedule it returns to the best one, forgets what is tabu, and
//    makes kShake moves at random.
// A move costs a pass over all steps, which `work` counts.
#include "search/schedule/local_search.h"

#include <algorithm>

#include "search/numbers/random.h"
#include "search/schedule/words.h"

namespace ostinato {
namespace {

/// Moves for which what was turned round stays so: at least, and at random this many more.
constexpr int kTenure = 8;
constexpr int kTenureSpread = 10;
/// Moves without a better schedule after which it goes on from the best one.
constexpr int kPatience = 1500;
constexpr int kShake = 6;
constexpr int kLongestRun = 64;  ///< of a longer run only the steps near its ends move
/// What a block on several devices passes is looked up on each of them.
constexpr std::int64_t kWorkPerDevice = 4;

class TabuSearch {
 public:
  TabuSearch(const Instance& in, int micro_batches, const std::vector<int>& sequence,
             const LocalSearchOptions& options)
      : options_(options),
        words_(in, micro_batches, sequence, options.objective),
        best_(words_),
        random_(options.seed) {}

  LocalSearchResult run() {
    for (int i = 0; i < options_.shake; ++i) shake();
    int since = 0;
    while (words_.value() > options_.give_up && work_ < options_.work) {
      if (options_.stop && (++asked_ & 63) == 0 && options_.stop()) break;
      if (++since > kPatience) {
        words_ = best_;
        tabu_.clear();
        for (int i = 0; i < kShake; ++i) shake();
        since = 0;
      }
      if (!step()) shake();
      if (words_.value() < best_.value()) {
        best_ = words_;
        since = 0;
      }
    }
    return {best_.sequence(), best_.schedule(), best_.value(), work_};
  }

 private:
  struct Candidate {
    Nanoseconds estimate;
    std::uint64_t tie;
    Words::Move move;
  };
  /// `first` must not run before `later` again until then.
  struct Tabu {
    int first;
    int later;
    std::int64_t until;
  };

  void consider(const Words::Move& move, bool estimate) {
    if (words_.width(move) > 1) work_ += kWorkPerDevice * words_.width(move);
    if (!words_.fits(move)) return;
    candidates_.push_back({estimate ? words_.estimate(move) : 0, random_.next(), move});
  }

  void find_candidates(bool estimate) {
    candidates_.clear();
    work_ += words_.steps();
    for (const Words::Run& run : words_.critical_runs(random_.next())) {
      const std::size_t size = run.steps.size();
      for (std::size_t i = 0; i + 1 < size; ++i) {
        consider({run.device, run.steps[i], run.steps[i + 1], true}, estimate);
        consider({run.device, run.steps[i], run.steps[i + 1], false}, estimate);
        if (size == 2) break;
        if (i > 0 && i < kLongestRun) consider({run.device, run.steps[0], run.steps[i + 1], false}, estimate);
        if (size - i < kLongestRun && i + 2 < size)
          consider({run.device, run.steps[i], run.steps[size - 1], true}, estimate);
      }
      work_ += static_cast<std::int64_t>(3 * size * std::min<std::size_t>(size, kLongestRun));
    }
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      return a.estimate != b.estimate ? a.estimate < b.estimate : a.tie < b.tie;
    });
  }

  bool tabu(const Words::Move& move) const {
    const int mover = words_.mover(move);
    for (const int s : words_.passed(move)) {
      const int first = move.right ? s : mover;
      const int later = move.right ? mover : s;
      for (const Tabu& t : tabu_) {
        if (t.first == first && t.later == later) return true;
      }
    }
    return false;
  }

  bool make(const Words::Move& move) {
    const int mover = words_.mover(move);
    const std::vector<int> passed = words_.passed(move);
    work_ += words_.work();
    if (!words_.apply(move)) return false;
    const std::int64_t until = ++moves_ + kTenure + static_cast<std::int64_t>(random_.next() % kTenureSpread);
    for (const int s : passed) tabu_.push_back({move.right ? mover : s, move.right ? s : mover, until});
    std::erase_if(tabu_, [&](const Tabu& t) { return t.until <= moves_; });
    return true;
  }

  /// The best move that is not tabu, or leads to a schedule better than all; else any.
  bool step() {
    find_candidates(true);
    for (const Candidate& c : candidates_) {
      if ((c.estimate < best_.value() || !tabu(c.move)) && make(c.move)) return true;
    }
    return !candidates_.empty() && make(candidates_[random_.next() % candidates_.size()].move);
  }

  /// A move at random on the critical path.
  void shake() {
    find_candidates(false);
    if (!candidates_.empty()) make(candidates_[random_.next() % candidates_.size()].move);
    work_ += words_.steps();
  }

  const LocalSearchOptions& options_;
  Words words_;
  Words best_;
  Random random_;
  std::vector<Candidate> candidates_;
  std::vector<Tabu> tabu_;
  std::int64_t moves_ = 0;
  std::int64_t work_ = 0;
  unsigned asked_ = 0;
};

}  // namespace

LocalSearchResult local_search(const Instance& in, int micro_batches, const std::vector<int>& sequence,
                               const LocalSearchOptions& options) {
  return TabuSearch(in, micro_batches, sequence, options).run();
}

}  // namespace ostinato
