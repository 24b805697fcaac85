// SPDX-License-Identifier: Apache-2.0
#include "search/repetend/modulo_compress.h"

#include <algorithm>

#include "search/bounds/bounds.h"

namespace ostinato {
namespace {

/// Blocks with the edges that no longer path implies, walked in both directions.
class Reduced {
 public:
  explicit Reduced(const Instance& in) : links_(in.blocks()) {
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

/// Which block took the bytes that another gives back on one device: a flow along augmenting paths (Ford,
/// Fulkerson 1956).
class Matching {
 public:
  Matching(const Instance& in, int d) {
    for (const int b : in.blocks_on(d)) {
      if (in.memory(b) > 0) takes_.push_back({b, in.memory(b), distances_from(in, b), {}, false});
      if (in.memory(b) < 0) gives_.push_back({b, -in.memory(b)});
    }
    for (Take& take : takes_) take.given.assign(gives_.size(), 0);
  }

  /// False if some bytes were not taken by any block that leads to the one that gives them back, or are kept.
  bool match(int d, std::vector<Compression::Match>& matches) {
    for (std::size_t g = 0; g < gives_.size(); ++g) {
      while (gives_[g].left > 0) {
        for (Take& take : takes_) take.visited = false;
        const Bytes got = find(g, gives_[g].left);
        if (got == 0) return false;
        gives_[g].left -= got;
      }
    }
    bool kept = false;
    for (const Take& take : takes_) {
      kept = kept || take.left > 0;
      for (std::size_t g = 0; g < gives_.size(); ++g) {
        if (take.given[g] > 0) matches.push_back({d, take.block, gives_[g].block, take.given[g]});
      }
    }
    return !kept;
  }

 private:
  struct Take {
    int block;
    Bytes left;
    std::vector<Nanoseconds> reached;  ///< [block]: -1 if no path leads there
    std::vector<Bytes> given;          ///< [give]
    bool visited;
  };
  struct Give {
    int block;
    Bytes left;
  };

  /// Up to `want` bytes for give g, from what is left or from gives that find other takes.
  Bytes find(std::size_t g, Bytes want) {
    for (Take& take : takes_) {
      if (take.visited || take.reached[gives_[g].block] < 0) continue;
      take.visited = true;
      Bytes got = std::min(want, take.left);
      take.left -= got;
      for (std::size_t other = 0; got == 0 && other < gives_.size(); ++other) {
        if (take.given[other] == 0) continue;
        got = find(other, std::min(want, take.given[other]));
        take.given[other] -= got;
      }
      take.given[g] += got;
      if (got > 0) return got;
    }
    return 0;
  }

  std::vector<Take> takes_;
  std::vector<Give> gives_;
};

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
  for (int d = 0; d < in.devices(); ++d) result.balanced &= Matching(in, d).match(d, result.matches);
  return result;
}

}  // namespace ostinato
