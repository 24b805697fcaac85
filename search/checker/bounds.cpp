// SPDX-License-Identifier: Apache-2.0
#include "search/checker/bounds.h"

#include <fmt/format.h>

#include "search/checker/cut_out.h"
#include "search/checker/idle.h"
#include "search/checker/least_end.h"
#include "search/checker/whole_steps.h"
#include "search/files/counted.h"

namespace ostinato::checker {
namespace {

template <typename Why>
void raise_to(Bound& best, Wide value, Why why) {
  if (value > best.value) best = {value, why()};
}

}  // namespace

Bounds::Bounds(const Placement& placement, const std::vector<Wide>& longest) : graph_(placement, longest) {
  areas_.resize(graph_.devices());
  if (!can_be_matched(graph_)) return;
  const bool apart = can_be_kept_apart(graph_);
  for (int d = 0; d < graph_.devices(); ++d) {
    areas_[d] = area_of(graph_, d);
    for (const Apart& one : apart ? kept_apart(graph_, d) : std::vector<Apart>{}) aparts_.push_back(one);
  }
}

Bound Bounds::makespan(int n, Wide enough) const {
  Bound best;
  one_micro_batch(best);
  if (best.value < enough) one_device(n, best);
  if (best.value < enough) memory(n, true, best);
  if (best.value < enough) spacing(n, best);
  if (best.value < enough) windows(n, best);
  if (best.value < enough) around_several_devices(n, best);
  return best;
}

Bound Bounds::makespan_by_windows(int n) const {
  Bound best;
  windows(n, best);
  around_several_devices(n, best);
  return best;
}

Bound Bounds::period(int unroll) const {
  Bound best;
  for (int d = 0; d < graph_.devices(); ++d) {
    Wide load = 0;
    for (const int b : graph_.on_device(d)) load += graph_.block(b).time;
    raise_to(best, load * unroll, [&] { return fmt::format("P1: the work of device {}", d); });
    raise_to(best, time_of(areas_[d], unroll), [&] { return fmt::format("P2: the memory of device {}", d); });
  }
  for (const Apart& one : aparts_) {
    raise_to(best, one.window(graph_, unroll), [&] {
      return fmt::format("P3: what micro-batches hold while block '{}' runs", graph_.block(one.block).name);
    });
  }
  return best;
}

Bound Bounds::span(int n, Wide enough, std::int64_t most_work) const {
  Bound best;
  between_own_blocks(n, best);
  memory(n, false, best);
  if (best.value < enough) whole_steps(n, best);
  for (int d = 0; d < graph_.devices() && best.value < enough && most_work > 0; ++d) {
    const Windows windows(graph_, n, d);
    if (!windows.known()) break;
    most_work -= windows.work();
    for (int e = 0; e < graph_.devices(); ++e) {
      raise_to(best, windows.least_end_of(e), [&] {
        return fmt::format("S4: the work of device {} from device {}'s first start to its last end", e, d);
      });
      raise_to(best, idle_bound(graph_, windows, n, e), [&] {
        return fmt::format(
            "S5: the work of device {} and its idle time for memory, from device {}'s first start", e, d);
      });
    }
  }
  return best;
}

void Bounds::between_own_blocks(int n, Bound& best) const {
  for (int d = 0; d < graph_.devices(); ++d) {
    if (d > 0 && (d + 1) * graph_.size() > kMostOrigins) {
      Wide load = 0;
      for (const int b : graph_.on_device(d)) load += graph_.block(b).time;
      raise_to(best, n * load, [&] { return fmt::format("S1: the work of device {}", d); });
      continue;
    }
    const std::vector<Wide> from = graph_.from_device(d, false);
    const std::vector<Wide> to = graph_.from_device(d, true);
    for (int e = 0; e < graph_.devices(); ++e) {
      std::vector<Task<Wide>> work;
      for (const int b : graph_.on_device(e)) {
        if (from[b] == Graph::kNone || to[b] == Graph::kNone) continue;
        work.push_back({from[b], static_cast<Wide>(n) * graph_.block(b).time, to[b]});
        raise_to(best, from[b] + graph_.block(b).time + to[b], [&] {
          return fmt::format("S2: block '{}' between blocks of device {}", graph_.block(b).name, d);
        });
      }
      raise_to(best, least_end(std::move(work)),
               [&] { return fmt::format("S1: the work of device {} between blocks of device {}", e, d); });
    }
  }
}

void Bounds::whole_steps(int n, Bound& best) const {
  if (!Windows::affordable(graph_, n)) return;
  for (const bool backwards : {false, true}) {
    raise_to(best, whole_steps_bound(graph_, n, backwards), [&] {
      return fmt::format("S6: whole steps {} of a block",
                         backwards ? "after the last ones" : "before the first ones");
    });
  }
}

Bound Bounds::latency() const { return makespan(1, kUnbounded); }

void Bounds::one_micro_batch(Bound& best) const {
  for (int b = 0; b < graph_.blocks(); ++b) {
    raise_to(best, graph_.head(b) + graph_.block(b).time + graph_.tail(b), [&] {
      return fmt::format("M1: the longest path of one micro-batch, through block '{}'", graph_.block(b).name);
    });
  }
}

void Bounds::one_device(int n, Bound& best) const {
  for (int d = 0; d < graph_.devices(); ++d) {
    std::vector<Task<Wide>> work;
    for (const int b : graph_.on_device(d))
      work.push_back({graph_.head(b), static_cast<Wide>(n) * graph_.block(b).time, graph_.tail(b)});
    raise_to(best, least_end(std::move(work)),
             [&] { return fmt::format("M2: the work of device {} with what comes before and after it", d); });
  }
}

void Bounds::memory(int n, bool borders, Bound& best) const {
  for (int d = 0; d < graph_.devices(); ++d) {
    if (areas_[d].bytes_time == 0) continue;
    const Wide outside = borders ? areas_[d].before + areas_[d].after : 0;
    raise_to(best, outside + time_of(areas_[d], n),
             [&] { return fmt::format("{}: the memory of device {}", borders ? "M3" : "S3", d); });
  }
}

void Bounds::spacing(int n, Bound& best) const {
  for (const Apart& one : aparts_) {
    const int b = one.block;
    raise_to(best, graph_.head(b) + one.window(graph_, n - 1) + graph_.block(b).time + graph_.tail(b), [&] {
      return fmt::format("M7: what micro-batches hold while block '{}' runs", graph_.block(b).name);
    });
  }
}

void Bounds::windows(int n, Bound& best) const {
  const Windows windows(graph_, n);
  for (int d = 0; d < graph_.devices() && windows.known(); ++d) {
    raise_to(best, windows.least_end_of(d), [&] {
      return fmt::format("M4: the work of device {} between the earliest starts and what must follow", d);
    });
    raise_to(best, idle_bound(graph_, windows, n, d), [&] {
      return fmt::format("M5: the work of device {} and its idle time while memory fills and empties", d);
    });
  }
}

void Bounds::around_several_devices(int n, Bound& best) const {
  const bool all = Windows::affordable(graph_, n);
  for (const std::vector<int>& cut : sets_to_cut_out(graph_)) {
    if (!all && static_cast<Wide>(cut.size()) * graph_.size() > kMostCutWork) continue;
    for (const Nanoseconds stays : times_that_stay(graph_, cut)) {
      const Rest rest = without(graph_, cut, stays);
      const Bound beside = Bounds(rest.placement, rest.longest).beside(n, all);
      raise_to(best, n * rest.cut_out + beside.value, [&] {
        return fmt::format("M6: {} ns of each micro-batch cut out of {} on several devices, beside it {}",
                           static_cast<Nanoseconds>(rest.cut_out), counted(cut.size(), "block"), beside.why);
      });
      if (!all) break;  // only 0
    }
  }
}

Bound Bounds::beside(int n, bool all) const {
  Bound best;
  if (!all) {
    one_device(n, best);
    return best;
  }
  memory(n, true, best);
  windows(n, best);
  return best;
}

Exhaustion Bounds::exhaust(int n, Nanoseconds below, std::int64_t most_work) const {
  return checker::exhaust(graph_, Windows(graph_, n), n, below, most_work);
}

Exhaustion Bounds::exhaust_span(int n, Nanoseconds below, std::int64_t most_work) const {
  Exhaustion all;
  all.verdict = Verdict::inapplicable;
  for (int d = 0; d < graph_.devices(); ++d) {
    if (!all_from(graph_, d, false) && !all_from(graph_, d, true)) continue;
    const Exhaustion one = checker::exhaust(graph_, Windows(graph_, n, d), n, below, most_work - all.work);
    all.work += one.work;
    if (one.verdict == Verdict::inapplicable) continue;
    all.verdict = one.verdict == Verdict::none ? Verdict::none : Verdict::unknown;
    if (all.verdict == Verdict::none) break;
  }
  return all;
}

}  // namespace ostinato::checker
