#include "search/modulo_compress.h"

#include <algorithm>

#include "search/bounds.h"

namespace ostinato {
namespace {

/// Blocks with the edges that no longer path implies, walked in both directions.
class Reduced {
 public:
  explicit Reduced(const Instance& in) : links_(static_cast<std::size_t>(in.blocks())) {
    for (int a = 0; a < in.blocks(); ++a) {
      const std::vector<Nanoseconds> from_a = distances_from(in, a);
      for (const Edge& e : in.followers(a)) {
        const Nanoseconds weight = in.time(a) + e.transfer;
        const auto implies = [&](const Edge& input) {
          return input.block != a && from_a[input.block] >= 0 &&
                 from_a[input.block] + input.transfer >= weight;
        };
        const auto inputs = in.inputs(e.block);
        if (std::any_of(inputs.begin(), inputs.end(), implies)) continue;
        links_[a].push_back({e.block, static_cast<int>(edges_.size())});
        links_[e.block].push_back({a, static_cast<int>(edges_.size())});
        edges_.push_back({a, e.block, weight});
      }
    }
  }

  /// Depth-first search: an edge is a bridge if nothing below it reaches above it (Tarjan 1974).
  void explore(Compression& result) {
    const std::size_t blocks = links_.size();
    result.part.assign(blocks, -1);
    seen_.assign(blocks, -1);
    low_.assign(blocks, 0);
    for (std::size_t b = 0; b < blocks; ++b) {
      if (seen_[b] >= 0) continue;
      result.anchors.push_back(static_cast<int>(b));
      visit(static_cast<int>(b), -1, result);
    }
  }

 private:
  struct Arc {
    int to;
    int edge;
  };

  void visit(int b, int through, Compression& result) {
    seen_[b] = low_[b] = count_++;
    result.part[b] = static_cast<int>(result.anchors.size()) - 1;
    for (const Arc& link : links_[b]) {
      if (link.edge == through) continue;
      if (seen_[link.to] < 0) {
        visit(link.to, link.edge, result);
        if (low_[link.to] > seen_[b]) result.bridges.push_back(edges_[link.edge]);
      }
      low_[b] = std::min(low_[b], low_[link.to]);
    }
  }

  std::vector<std::vector<Arc>> links_;
  std::vector<Compression::Bridge> edges_;
  std::vector<int> seen_, low_;
  int count_ = 0;
};

/// Each byte given back to the latest block before it that took one. False if some bytes find none, or are
/// never given back.
bool match(const Instance& in, int d, std::vector<Compression::Match>& matches) {
  std::vector<int> order(in.blocks_on(d).begin(), in.blocks_on(d).end());
  std::sort(order.begin(), order.end(), [&](int a, int b) { return in.rank(a) < in.rank(b); });
  std::vector<Bytes> left(static_cast<std::size_t>(in.blocks()), 0);
  for (const int b : order) left[b] = in.memory(b);
  for (auto take = order.rbegin(); take != order.rend(); ++take) {
    if (left[*take] <= 0) continue;
    const std::vector<Nanoseconds> reached = distances_from(in, *take);
    for (const int give : order) {
      if (left[give] >= 0 || reached[give] < 0) continue;
      const Bytes bytes = std::min(left[*take], -left[give]);
      if (bytes == 0) continue;
      left[*take] -= bytes;
      left[give] += bytes;
      matches.push_back({d, *take, give, bytes});
    }
  }
  return std::all_of(order.begin(), order.end(), [&](int b) { return left[b] == 0; });
}

}  // namespace

Compression compress(const Instance& in) {
  Compression result;
  Reduced(in).explore(result);
  for (int b = 0; b < in.blocks(); ++b) {
    Nanoseconds slowest = 0;
    for (const Edge& e : in.followers(b)) slowest = std::max(slowest, e.transfer);
    result.reach += in.time(b) + slowest;
  }
  result.balanced = true;
  for (int d = 0; d < in.devices(); ++d) result.balanced &= match(in, d, result.matches);
  return result;
}

}  // namespace ostinato
