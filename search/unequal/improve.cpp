// SPDX-License-Identifier: Apache-2.0
// A walk with a falling limit (threshold accepting with random thresholds): a move is taken if the makespan
// stays within an exponentially distributed excess, with a mean that falls with the square of the work left.
// Of eight moves, one exchanges two micro-batches, one slides a micro-batch along the list, one shifts a step
// anywhere (memory may have to be made first), and five shift steps within a run of the critical path, which
// is found again after a move that was taken, or after eight that were not. The best list is kept, and loaded
// again at the end.
#include "search/unequal/improve.h"

#include <algorithm>
#include <bit>

namespace ostinato::unequal {
namespace {

/// About an exponential variable of mean 1.44, in 256ths: -log2 of a uniform number, straight between powers.
Nanoseconds exponential(Random& random) {
  const std::uint64_t drawn = random.next() | 1;
  const int zeros = std::countl_zero(drawn);
  const std::uint64_t fraction = zeros >= 55 ? 0 : (drawn << (zeros + 1)) >> 56;
  return static_cast<Nanoseconds>(zeros + 1) * 256 - static_cast<Nanoseconds>(fraction);
}

__extension__ using Wide = __int128;

/// `of_1024` 1024ths of it, rounded down: a heat may be as large as 2^62.
Nanoseconds share_of(Nanoseconds heat, std::int64_t of_1024) {
  return heat / 1024 * of_1024 + heat % 1024 * of_1024 / 1024;
}

class Walk {
 public:
  Walk(const Jobs& jobs, Sequence& now, const Effort& effort)
      : jobs_(jobs), now_(now), effort_(effort), random_(effort.seed) {}

  bool run() {
    best_ = now_.order();
    least_ = now_.makespan();
    const std::int64_t begin = now_.work(), end = begin + effort_.work;
    stale_ = true;
    for (int turn = 0; now_.work() < end && least_ > effort_.enough; ++turn) {
      if (effort_.stop && turn % 64 == 63 && effort_.stop()) return finish(true);
      const std::int64_t left = (end - now_.work()) * 1024 / effort_.work;
      // Heat falls with the square of what is left.
      const Nanoseconds heat = share_of(share_of(effort_.heat, left), left);
      step(now_.makespan() + excess(heat));
      if (now_.makespan() < least_) {
        least_ = now_.makespan();
        best_ = now_.order();
      }
    }
    return finish(false);
  }

 private:
  /// About `heat`, which may be as large as 2^62.
  Nanoseconds excess(Nanoseconds heat) {
    const Wide coarse = Wide{heat / 256} * exponential(random_) / 256;
    const Nanoseconds fine = heat % 256 * exponential(random_) / 65536;
    return static_cast<Nanoseconds>(std::min<Wide>(coarse + fine, kNever / 2));
  }

  bool finish(bool stopped) {
    if (now_.makespan() > least_) now_.load(best_);
    return stopped;
  }

  void step(Nanoseconds limit) {
    if (stale_ || ++tried_ > 8) {
      pairs_ = &now_.critical(random_);
      tried_ = 0;
      stale_ = false;
    }
    const int drawn = random_.below(8);
    if (drawn == 0)
      stale_ = exchange(limit);
    else if (drawn == 1)
      stale_ = slide(limit);
    else if (drawn == 2 || pairs_->empty())
      stale_ = now_.shift(anywhere(), limit);
    else
      stale_ = now_.shift(pick(), limit);
  }

  /// Off the critical path: memory may have to be made before a move on it fits.
  Sequence::Shift anywhere() {
    const auto& order = now_.order();
    const int steps = static_cast<int>(order.size());
    const int at = random_.below(steps);
    const int to = std::min(steps - 1, at + 1 + random_.below(std::min(steps, 2 * jobs_.devices() + 2)));
    return {order[at], order[to], random_.below(2) == 0};
  }

  bool exchange(Nanoseconds limit) {
    if (jobs_.micro_batches() < 2) return false;
    const int i = random_.below(jobs_.micro_batches());
    const int j = (i + 1 + random_.below(jobs_.micro_batches() - 1)) % jobs_.micro_batches();
    return now_.exchange(i, j, limit);
  }

  bool slide(Nanoseconds limit) {
    const int far = 1 + random_.below(std::max(2, static_cast<int>(now_.order().size()) / 4));
    return now_.slide(random_.below(jobs_.micro_batches()), random_.below(2) == 0 ? far : -far, limit);
  }

  /// A pair, or the ends of a part of the run that it lies in. Pairs are listed from the end of the schedule.
  Sequence::Shift pick() {
    const auto& pairs = *pairs_;
    const int at = random_.below(static_cast<int>(pairs.size()));
    int early = at;  // pairs[early].before is the first of the part
    const bool right = random_.below(2) == 0;
    if (random_.below(2) == 0) {
      while (early + 1 < static_cast<int>(pairs.size()) && pairs[early + 1].joined && random_.below(4) != 0)
        ++early;
    }
    return {pairs[early].before, pairs[at].after, right};
  }

  const Jobs& jobs_;
  Sequence& now_;
  const Effort& effort_;
  Random random_;
  std::vector<int> best_;
  Nanoseconds least_ = kNever;
  const std::vector<Sequence::Pair>* pairs_ = nullptr;
  bool stale_ = true;
  int tried_ = 0;
};

}  // namespace

bool improve(const Jobs& jobs, Sequence& now, const Effort& effort) { return Walk(jobs, now, effort).run(); }

}  // namespace ostinato::unequal
