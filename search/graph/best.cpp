// SPDX-License-Identifier: Apache-2.0
// 1. The starts: HEFT on all devices and on the fastest of them, every strategy with every schedule, and, if
//    memory refused one of these, packings of the groups. Each is packed to the left.
// 2. The bound, before the search; for large graphs beside it.
// 3. Small graphs by exhaustion (exact.h), briefly; it proves its result or that nothing fits.
// 4. Else runs of local search from the up to four best starts, with both kinds of moves by turns. Results
//    are compared in the order of the runs, so the number of threads does not change the answer.
// 5. Small graphs by exhaustion at length, below what the local search found.
#include "search/graph/best.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>
#include <utility>

#include "search/graph/bound.h"
#include "search/graph/exact.h"
#include "search/graph/limit.h"
#include "search/graph/pack.h"
#include "search/graph/sequence.h"
#include "search/graph/simulate.h"
#include "search/graph/strategies.h"

namespace ostinato::graph {
namespace {

/// Seconds, and the most vertices of a graph that is bounded before its search begins.
constexpr double kUsualLimit = 10;
constexpr int kQuicklyBound = 1'000;
/// Orders of the groups that are tried where memory is short.
constexpr std::uint64_t kMostPackings = 32;

/// The starts of the search, shortest first.
class Portfolio {
 public:
  Portfolio(const GraphCosts& costs, Limit& limit, std::uint64_t seed)
      : costs_(costs), limit_(limit), seed_(seed) {}

  void fill() {
    add_heft(costs_.device_count());  // first: it is quick and good, and one start there must be
    for (int count = 1; count < costs_.device_count(); count += std::max(1, count / 3)) {
      if (limit_.reached()) break;
      add_heft(count);
    }
    for (const GraphStrategy strategy : kGraphStrategies) {
      if (limit_.reached() && !starts_.empty()) break;
      if (strategy != GraphStrategy::heft) add_strategy(strategy);
    }
    if (!reason_.empty()) add_packed();
    std::stable_sort(starts_.begin(), starts_.end(), [](const Start& a, const Start& b) {
      return a.solution.makespan < b.solution.makespan;
    });
  }

  bool empty() const { return starts_.empty(); }
  const std::string& reason() const { return reason_; }
  int size() const { return static_cast<int>(starts_.size()); }
  const GraphSolution& operator[](int index) const { return starts_[index].solution; }
  std::vector<GraphCandidate> candidates() const {
    std::vector<GraphCandidate> list;
    for (const Start& s : starts_) list.push_back({s.name, s.solution.makespan});
    return list;
  }

 private:
  struct Start {
    std::string name;
    GraphSolution solution;
  };

  void add_heft(int count) {
    std::vector<char> usable(costs_.device_count(), 0);
    for (int i = 0; i < count; ++i) usable[costs_.by_speed()[i]] = 1;
    const GraphPartition p = partition_heft(costs_, usable, {.seed = seed_});
    if (!accepted(p)) return;
    const std::string name =
        count == costs_.device_count() ? "heft" : fmt::format("heft on the {} fastest", count);
    std::vector<Ticks> start = p.planned;
    for (int v = 0; v < costs_.graph().size(); ++v) start[v] -= costs_.execution(v, p.assignment[v]);
    add(name, p.assignment, start);
    keep_shorter(p.assignment, simulate_ranked(costs_, p.assignment, p.planned).start);
    add(name + " + pct", p.assignment, simulate(costs_, p.assignment, GraphSchedule::pct).start);
  }

  void add_strategy(GraphStrategy strategy) {
    const GraphPartition p = partition(costs_, strategy, {.seed = seed_});
    if (!accepted(p)) return;
    for (const GraphSchedule schedule : {GraphSchedule::pct, GraphSchedule::fifo, GraphSchedule::msr})
      add(fmt::format("{} + {}", to_string(strategy), to_string(schedule)), p.assignment,
          simulate(costs_, p.assignment, schedule).start);
  }

  /// Where memory keeps strategies from an assignment, or from a good one.
  void add_packed() {
    for (const bool quick : {false, true}) {
      for (std::uint64_t seed = 0; seed < kMostPackings && !limit_.reached(); ++seed) {
        const GraphPartition p = pack_groups(costs_, seed, quick);
        if (!p.reason.empty()) continue;
        add(quick ? "packed by time + pct" : "packed by memory + pct", p.assignment,
            simulate(costs_, p.assignment, GraphSchedule::pct).start);
        break;
      }
    }
  }

  bool accepted(const GraphPartition& p) {
    if (!p.reason.empty()) reason_ = p.reason;
    return p.reason.empty();
  }

  void add(std::string name, const Assignment& assignment, const std::vector<Ticks>& start) {
    starts_.push_back({std::move(name), packed(assignment, start)});
  }

  /// The last start by this order, where that is shorter.
  void keep_shorter(const Assignment& assignment, const std::vector<Ticks>& start) {
    GraphSolution other = packed(assignment, start);
    if (other.makespan < starts_.back().solution.makespan) starts_.back().solution = std::move(other);
  }

  /// The order of the starts, packed to the left: as long as before, or shorter. What takes no time goes
  /// before what starts with it on its device, and takes some.
  GraphSolution packed(const Assignment& assignment, const std::vector<Ticks>& start) const {
    std::vector<int> order = costs_.graph().order;
    const auto place = [&](int v) { return std::pair(start[v], costs_.execution(v, assignment[v]) > 0); };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return place(a) < place(b); });
    const GraphSequence sequence(costs_, assignment, order);
    return {assignment, std::move(order), sequence.starts(), sequence.makespan()};
  }

  const GraphCosts& costs_;
  Limit& limit_;
  const std::uint64_t seed_;
  std::vector<Start> starts_;
  std::string reason_;
};

/// In proportion to the size, up to 1,000 vertices.
std::int64_t usual_work(const OperatorGraph& graph) {
  return std::min<std::int64_t>(200'000'000, 200'000LL * graph.size());
}

/// A limit above the usual one raises the work in proportion, so that it finds more and no machine's speed
/// counts.
std::int64_t work_of(const GraphBestOptions& options, const OperatorGraph& graph) {
  if (options.work >= 0) return options.work;
  const double limits = std::min(options.time_limit_seconds / kUsualLimit, 1e6);
  const std::int64_t usual = usual_work(graph);
  return limits > 1 ? static_cast<std::int64_t>(static_cast<double>(usual) * limits) : usual;
}

/// A partial schedule is about as much work as this many vertices of the local search.
constexpr std::int64_t kWorkPerNode = 8;
/// Partial schedules: in the first try; and at most, for they stay in memory.
constexpr std::int64_t kFirstNodes = 20'000, kMostNodes = 4'000'000;

/// Small graphs by exhaustion. True: no schedule is shorter than that in `best`, or there is none at all.
bool exhausted(const GraphCosts& costs, std::int64_t nodes, Limit& limit, GraphBest& best) {
  const bool any = best.reason.empty();
  if (any && best.solution.makespan == best.lower_bound) return true;
  ExactOptions options{.nodes = nodes, .stop = [&] { return limit.reached(); }};
  if (any) options.below = best.solution.makespan;
  ExactPartition exact = exact_partition(costs, options);
  if (exact.solution) {
    best.solution = std::move(*exact.solution);
    best.reason.clear();
  }
  if (!exact.complete) return false;
  best.infeasible = !best.reason.empty();
  if (!best.infeasible) best.lower_bound = best.solution.makespan;
  return true;
}

/// Runs of the local search from the best starts, side by side.
void search_locally(const GraphCosts& costs, const GraphBestOptions& options, const Portfolio& portfolio,
                    std::int64_t counted, Limit& limit, int threads, GraphBest& best) {
  const int runs = counted > 0 ? std::max(1, options.runs) : 0;
  const GraphSolution first = best.solution;
  std::vector<GraphSolution> results(runs);
  std::atomic<int> next = 0;
  const auto work = [&] {
    for (int run = next++; run < runs; run = next++)
      results[run] = improve(
          costs, run == 0 || portfolio.empty() ? first : portfolio[run % std::min(4, portfolio.size())],
          {.moves = run % 2 == 0 ? GraphMoves::groups : GraphMoves::vertices,
           .seed = options.seed * 1000 + static_cast<std::uint64_t>(run) + 1,
           .work = counted,
           .lower_bound = best.lower_bound,
           .stop = [&] { return limit.reached(); }});
  };
  std::vector<std::jthread> helpers;
  for (int t = 1; t < std::min(runs, threads); ++t) helpers.emplace_back(work);
  work();
  helpers.clear();  // joins
  for (GraphSolution& result : results)
    if (result.makespan < best.solution.makespan) best.solution = std::move(result);
}

}  // namespace

GraphBest best_partition(const GraphCosts& costs, const GraphBestOptions& options) {
  Limit limit(options.time_limit_seconds, options.interrupted);
  Portfolio portfolio(costs, limit, options.seed);
  portfolio.fill();
  GraphBest best;
  const int machine = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const int threads = options.threads > 0 ? options.threads : machine;
  // A large graph's takes seconds of the limit, and a search without it finds the same.
  const bool beside = costs.graph().size() > kQuicklyBound && threads > 1;
  bool bound_cut = false;  // read once the bound is there
  std::future<Ticks> bound = std::async(beside ? std::launch::async : std::launch::deferred, [&] {
    return graph_lower_bound(costs, [&] { return bound_cut = limit.reached(); });
  });
  if (!beside) best.lower_bound = bound.get();
  if (portfolio.empty()) {
    best.reason = portfolio.reason();
  } else {
    best.candidates = portfolio.candidates();
    best.solution = portfolio[0];
  }
  const std::int64_t counted = work_of(options, costs.graph());
  const bool small = options.exhaust && counted > 0 && may_be_exhausted(costs);
  const std::int64_t nodes = std::min(counted / kWorkPerNode, kMostNodes);
  bool settled = small && exhausted(costs, std::min(nodes, kFirstNodes), limit, best);
  const bool searches = !settled && best.reason.empty();
  const std::int64_t work = small ? std::min(counted, usual_work(costs.graph())) : counted;
  if (searches) search_locally(costs, options, portfolio, work, limit, threads, best);
  settled = settled || (small && nodes > kFirstNodes && exhausted(costs, nodes, limit, best));
  const bool search_cut = limit.reached();
  if (beside) best.lower_bound = std::max(best.lower_bound, bound.get());
  best.cut_by_limit =
      !settled && (search_cut || bound_cut) && (!searches || best.solution.makespan > best.lower_bound);
  return best;
}

}  // namespace ostinato::graph
