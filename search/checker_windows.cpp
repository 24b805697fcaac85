#include "search/checker_windows.h"

#include <algorithm>
#include <queue>

namespace ostinato::checker {
namespace {

/// Sums of times and transfers of all micro-batches stay below this.
constexpr Wide kLongest = static_cast<Wide>(1) << 60;

/// The part of W3 and W4 that concerns one block on one of its devices.
struct Place {
  struct Before {
    int block;
    Nanoseconds gap;  ///< least time from its end to the start of the block
  };
  std::vector<Before> before;  ///< blocks of the device from which a path leads here
  struct Share {
    int giver;  ///< -1: never given back
    Bytes bytes;
  };
  std::vector<Share> shares;  ///< bytes that this block, and what is before it, take on the device
  Wide room = -1;             ///< for the shares; -1: not limited, or nothing is known
};

/// Earliest starts in one direction of time: backwards, edges are turned round and what gives back takes.
class Earliest {
 public:
  Earliest(const Graph& graph, int n, bool backwards)
      : graph_(graph),
        n_(n),
        backwards_(backwards),
        blocks_(static_cast<std::size_t>(graph.blocks())),
        start_(blocks_ * static_cast<std::size_t>(n)) {
    find_places();
    for (int d = 0; d < graph_.devices(); ++d) add_shares(d);
  }

  std::vector<Nanoseconds> run() {
    const int own = micro_batches_of_their_own();
    for (int i = 0; i < own; ++i) {
      for (std::size_t b = 0; b < blocks_; ++b) {
        if (i > 0) start(b, i) = end(b, i - 1);  // W2
      }
      graph_.walk(backwards_, [&](int b, const std::vector<Graph::Edge>& edges) { raise(b, i, edges); });
    }
    if (own < n_) repeat(own);
    return std::move(start_);
  }

 private:
  Nanoseconds time(std::size_t b) const { return graph_.block(static_cast<int>(b)).time; }
  Nanoseconds& start(std::size_t b, int i) { return start_[static_cast<std::size_t>(i) * blocks_ + b]; }
  Nanoseconds end(std::size_t b, int i) { return start(b, i) + time(b); }

  /// Who precedes whom on each device, and by how much.
  void find_places() {
    places_.resize(blocks_);
    for (std::size_t b = 0; b < blocks_; ++b) places_[b].resize(graph_.block(b).devices.size());
    for (std::size_t a = 0; a < blocks_; ++a) {
      const std::vector<Wide> distance = graph_.distances_from(static_cast<int>(a));
      const std::vector<int>& devices = graph_.block(a).devices;
      for (const int d : devices) {
        for (const int c : graph_.on_device(d)) {
          if (static_cast<std::size_t>(c) == a || distance[c] == Graph::kNone) continue;
          const auto gap = static_cast<Nanoseconds>(distance[c] - time(a) - time(c));
          backwards_ ? place(a, d).before.push_back({c, gap})
                     : place(c, d).before.push_back({static_cast<int>(a), gap});
        }
      }
    }
  }

  Place& place(std::size_t b, int d) {
    const std::vector<int>& devices = graph_.block(static_cast<int>(b)).devices;
    return places_[b]
                  [static_cast<std::size_t>(std::find(devices.begin(), devices.end(), d) - devices.begin())];
  }

  /// What is surely held on d when a block starts (W4).
  void add_shares(int d) {
    const Device& device = graph_.placement().devices[static_cast<std::size_t>(d)];
    const Wide room = static_cast<Wide>(device.memory) - device.static_memory;
    if (device.memory == kUnlimited || room < 0) return;
    const Matching matching = match(graph_, d);
    const auto& held = matching.held;
    const bool all_given_back =
        std::all_of(held.begin(), held.end(), [](const Held& h) { return h.giver >= 0; });
    if (!matching.complete || (backwards_ && !all_given_back)) return;
    for (const int b : graph_.on_device(d)) {
      Place& here = place(b, d);
      here.room = room - graph_.workspace(b);
      for (const Held& h : held) {
        const int taker = backwards_ ? h.giver : h.taker;
        const bool taken =
            taker == b || std::any_of(here.before.begin(), here.before.end(),
                                      [&](const Place::Before& x) { return x.block == taker; });
        if (taken) here.shares.push_back({backwards_ ? h.taker : h.giver, h.bytes});
      }
    }
  }

  /// W3 and W4 cost the square of the micro-batches; those beyond follow from W5.
  int micro_batches_of_their_own() const {
    Wide pairs = 0;
    for (const auto& of_block : places_) {
      for (const Place& here : of_block) pairs += static_cast<Wide>(here.before.size()) + 1;
    }
    int own = 2;
    while (own < n_ && pairs * (own + 1) * (own + 1) <= Windows::kMostWork) ++own;
    return std::min(own, n_);
  }

  void raise(int b, int i, const std::vector<Graph::Edge>& edges) {
    Nanoseconds& least = start(b, i);
    for (const Graph::Edge& edge : edges) {  // W1
      least = std::max(least, end(edge.block, i) + static_cast<Nanoseconds>(edge.transfer));
    }
    for (const Place& here : places_[b]) {
      least = std::max(least, after_work(b, i, here));
      least = std::max(least, after_memory(i, here, least));
    }
  }

  /// W3: what the device must do before.
  Nanoseconds after_work(int b, int i, const Place& here) {
    std::vector<Task> tasks;
    for (int j = 0; j < i; ++j) tasks.push_back({start(b, j), time(b), 0});
    for (const Place::Before& x : here.before) {
      for (int j = 0; j <= i; ++j) tasks.push_back({start(x.block, j), time(x.block), x.gap});
    }
    return least_end(std::move(tasks));
  }

  /// W4: the instant from which on the bytes that are surely held leave room.
  Nanoseconds after_memory(int i, const Place& here, Nanoseconds least) {
    if (here.room < 0) return least;
    Wide held = 0;
    std::vector<std::pair<Nanoseconds, Bytes>> given_back;
    for (const Place::Share& share : here.shares) {
      held += static_cast<Wide>(share.bytes) * (i + 1);
      if (share.giver < 0) continue;
      for (int j = 0; j <= i; ++j) given_back.emplace_back(end(share.giver, j), share.bytes);
    }
    std::sort(given_back.begin(), given_back.end());
    for (const auto& [at, bytes] : given_back) {
      if (at > least && held <= here.room) break;
      least = std::max(least, at);
      held -= bytes;
    }
    return least;
  }

  /// W5: without its first `step` micro-batches a schedule is one of fewer, which starts later.
  void repeat(int own) {
    const int step = own - 1;
    const auto row = start_.begin() + static_cast<std::ptrdiff_t>(step * blocks_);
    const Nanoseconds later = *std::min_element(row, row + static_cast<std::ptrdiff_t>(blocks_));
    for (int i = own; i < n_; ++i) {
      for (std::size_t b = 0; b < blocks_; ++b) {
        start(b, i) = std::max(end(b, i - 1), later + start(b, i - step));
      }
    }
  }

  const Graph& graph_;
  int n_;
  bool backwards_;
  std::size_t blocks_;
  std::vector<Nanoseconds> start_;
  std::vector<std::vector<Place>> places_;  ///< of each block, by its devices
};

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

Windows::Windows(const Graph& graph, int n)
    : graph_(graph),
      n_(n),
      blocks_(static_cast<std::size_t>(graph.blocks())),
      known_(small_enough(graph, n)) {
  if (!known_) return;
  head_ = Earliest(graph, n, false).run();
  tail_ = Earliest(graph, n, true).run();
}

Nanoseconds Windows::least_makespan(int device) const {
  std::vector<Task> tasks;
  for (const int b : graph_.on_device(device)) {
    for (int i = 0; i < n_; ++i) tasks.push_back({earliest(b, i), graph_.block(b).time, after(b, i)});
  }
  return least_end(std::move(tasks));
}

}  // namespace ostinato::checker
