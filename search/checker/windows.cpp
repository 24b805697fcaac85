#include "search/checker/windows.h"

#include <algorithm>
#include <queue>

namespace ostinato::checker {
namespace {

/// Sums of times and transfers of all micro-batches stay below this.
constexpr Wide kLongest = static_cast<Wide>(1) << 60;

/// Whether all sums fit, and the work stays small.
bool small_enough(const Graph& graph, int n) {
  Wide longest = 0, edges = 0;
  graph.walk(false, [&](int b, const std::vector<Graph::Edge>& inputs) {
    longest += graph.block(b).time;
    for (const Graph::Edge& edge : inputs) longest += edge.transfer;
    edges += static_cast<Wide>(inputs.size());
  });
  const Wide blocks = graph.blocks();
  return longest <= kLongest / n && blocks * n <= Windows::kMostSteps &&
         blocks * (blocks + edges) <= Windows::kMostPaths;
}

}  // namespace

Nanoseconds least_end(std::vector<Task> tasks) {
  std::sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.head < b.head; });
  std::priority_queue<std::pair<Nanoseconds, Nanoseconds>> ready;  // tail, time that is left
  Nanoseconds now = 0, end = 0;
  for (std::size_t next = 0; next < tasks.size() || !ready.empty();) {
    if (ready.empty()) now = std::max(now, tasks[next].head);
    for (; next < tasks.size() && tasks[next].head <= now; ++next) {
      ready.emplace(tasks[next].tail, tasks[next].time);
    }
    auto [tail, left] = ready.top();
    ready.pop();
    const Nanoseconds run = next < tasks.size() ? std::min(left, tasks[next].head - now) : left;
    now += run;
    if (run < left) {
      ready.emplace(tail, left - run);
    } else {
      end = std::max(end, now + tail);
    }
  }
  return end;
}

Windows::Windows(const Graph& graph, int n, int origin)
    : graph_(graph),
      n_(n),
      origin_(origin),
      blocks_(static_cast<std::size_t>(graph.blocks())),
      known_(small_enough(graph, n)) {
  if (!known_) return;
  for (const bool backwards : {false, true}) {
    EarliestStarts earliest = earliest_starts(graph, n, {backwards, origin});
    work_ += earliest.work;
    (backwards ? tail_ : head_) = std::move(earliest.start);
  }
}

Nanoseconds Windows::least_end_of(int device) const {
  std::vector<Task> tasks;
  for (const int b : graph_.on_device(device)) {
    for (int i = 0; i < n_; ++i) {
      if (earliest(b, i) == kUnknown || after(b, i) == kUnknown) continue;
      tasks.push_back({earliest(b, i), graph_.block(b).time, after(b, i)});
    }
  }
  return least_end(std::move(tasks));
}

}  // namespace ostinato::checker
