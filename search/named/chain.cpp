// SPDX-License-Identifier: Apache-2.0
#include "search/named/chain.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "search/files/counted.h"
#include "search/placement/lanes.h"

namespace ostinato {
namespace {

/// Why a placement is not a chain; caught by find_chain() and never seen outside.
struct NotAChain : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Detector {
 public:
  /// `order`: the blocks to look at, each after its inputs.
  Detector(const Placement& placement, std::vector<int> order)
      : placement_(placement), order_(std::move(order)), stage_of_block_(placement.blocks.size(), -1) {}

  Chain run() {
    collect_stages();
    collect_backwards();
    check_forwards();
    check_backwards();
    join_parts();
    assign_ranks();
    return std::move(chain_);
  }

 private:
  const Block& block(int b) const { return placement_.blocks[b]; }

  /// The stages in model order, which is a topological order of their forwards.
  void collect_stages() {
    for (const int b : order_) {
      if (block(b).devices.size() != 1) {
        throw NotAChain("block " + block(b).name + " holds " + counted(block(b).devices.size(), "device"));
      }
      if (block(b).kind >= Kind::offload)
        throw NotAChain("block " + block(b).name + " is neither forward nor backward");
      if (block(b).kind != Kind::forward) continue;
      const int s = static_cast<int>(chain_.stages.size());
      if (!by_name_.emplace(block(b).stage, s).second) {
        throw NotAChain("stage " + block(b).stage + " has more than one forward");
      }
      chain_.stages.push_back({{.forward = b}});
      stage_of_block_[b] = s;
    }
    if (chain_.stages.empty()) throw NotAChain("no block is a forward");
  }

  void collect_backwards() {
    for (const int b : order_) {
      if (block(b).kind != Kind::forward) add_backward(b, block(b).kind == Kind::backward_weight);
    }
    const ChainPlace& first = chain_.stages.front();
    chain_.training = first.backward >= 0;
    chain_.split = first.weight >= 0;
    for (const ChainPlace& stage : chain_.stages) {
      const std::string& name = block(stage.forward).stage;
      if ((stage.backward >= 0) != chain_.training)
        throw NotAChain("only some stages have a backward: see " + name);
      if ((stage.weight >= 0) != chain_.split)
        throw NotAChain("only some backwards are split: see stage " + name);
      if (stage.weight >= 0 && block(stage.backward).kind != Kind::backward_input) {
        throw NotAChain("stage " + name + " has a weight half beside a whole backward");
      }
    }
  }

  void add_backward(int b, bool weight) {
    const auto found = by_name_.find(block(b).stage);
    if (found == by_name_.end()) throw NotAChain("stage " + block(b).stage + " has no forward");
    ChainPlace& stage = chain_.stages[found->second];
    int& place = weight ? stage.weight : stage.backward;
    if (place >= 0) throw NotAChain("stage " + block(b).stage + " has more than one backward of a kind");
    if (block(b).devices != block(stage.forward).devices) {
      throw NotAChain("block " + block(b).name + " runs on another device than its forward");
    }
    place = b;
    stage_of_block_[b] = found->second;
  }

  bool depends(int b, int on) const {
    const auto& after = block(b).after;
    return std::any_of(after.begin(), after.end(),
                       [&](const Dependency& input) { return input.block == on; });
  }

  void check_forwards() const {
    for (std::size_t s = 0; s < chain_.stages.size(); ++s) {
      const int b = chain_.stages[s].forward;
      for (const Dependency& input : block(b).after) {
        if (block(input.block).kind != Kind::forward)
          throw NotAChain("forward " + block(b).name + " waits for a backward");
      }
      if (s > 0 && !depends(b, chain_.stages[s - 1].forward)) {
        throw NotAChain("the forwards are not one chain: " + block(b).name + " does not follow " +
                        block(chain_.stages[s - 1].forward).name);
      }
    }
  }

  /// Backwards follow each other from the last stage to the first, weight halves follow nothing but input
  /// halves.
  void check_backwards() const {
    if (!chain_.training) return;
    for (std::size_t s = 0; s < chain_.stages.size(); ++s) {
      const ChainPlace& stage = chain_.stages[s];
      if (s + 1 < chain_.stages.size() && !depends(stage.backward, chain_.stages[s + 1].backward)) {
        throw NotAChain("the backwards are not one chain: " + block(stage.backward).name +
                        " does not follow " + block(chain_.stages[s + 1].backward).name);
      }
      check_inputs(stage.backward, static_cast<int>(s));
      if (stage.weight >= 0) check_inputs(stage.weight, static_cast<int>(s));
    }
  }

  void check_inputs(int b, int s) const {
    for (const Dependency& input : block(b).after) {
      const Kind kind = block(input.block).kind;
      if (kind == Kind::forward) continue;
      if (kind == Kind::backward_weight || stage_of_block_[input.block] < s) {
        throw NotAChain("block " + block(b).name + " waits for " + block(input.block).name);
      }
    }
  }

  int device_of_part(const StageBlocks& part) const {
    return device_of(placement_, block(part.forward).devices.front());
  }

  void join_parts() {
    chain_.lanes = std::ranges::any_of(placement_.devices, [](const Device& d) { return d.lane_of >= 0; });
    std::vector<ChainPlace> joined;
    for (ChainPlace& stage : chain_.stages) {
      if (!chain_.lanes) {
        stage.parts = {stage};
      } else if (joined.empty() || device_of_part(joined.back().parts.back()) != device_of_part(stage)) {
        joined.push_back({{}, 0, 0, {stage}});
      } else {
        joined.back().parts.push_back(stage);
      }
    }
    if (chain_.lanes) chain_.stages = std::move(joined);
  }

  void assign_ranks() {
    std::map<int, int> rank_of_device;
    std::vector<int> chunks;
    for (ChainPlace& stage : chain_.stages) {
      const int device = device_of_part(stage.parts.front());
      const auto [found, is_new] = rank_of_device.emplace(device, chain_.depth());
      if (is_new) {
        chain_.devices.push_back(device);
        chunks.push_back(0);
      }
      stage.rank = found->second;
      stage.chunk = chunks[stage.rank]++;
    }
    chain_.chunks = chunks.front();
    for (const int count : chunks) {
      if (count != chain_.chunks) throw NotAChain("the devices run different numbers of stages");
    }
    chain_.shape = shape();
  }

  ChainShape shape() const {
    if (chain_.chunks == 1) return ChainShape::single;
    const int depth = chain_.depth();
    bool looped = true;
    bool wave = true;
    for (int s = 0; s < static_cast<int>(chain_.stages.size()); ++s) {
      const int there = s % depth;
      const int back = depth - 1 - there;
      looped &= chain_.stages[s].rank == there;
      wave &= chain_.stages[s].rank == ((s / depth) % 2 == 0 ? there : back);
    }
    if (looped) return ChainShape::looped;  // on one device both hold
    return wave ? ChainShape::wave : ChainShape::irregular;
  }

  const Placement& placement_;
  const std::vector<int> order_;
  Chain chain_;
  std::map<std::string, int> by_name_;
  std::vector<int> stage_of_block_;
};

/// The blocks of a placement in topological order, apart where no dependency connects them.
std::vector<std::vector<int>> components(const Placement& placement) {
  std::vector<int> leader(placement.blocks.size());
  std::iota(leader.begin(), leader.end(), 0);
  const auto find = [&](int b) {
    while (leader[b] != b) b = leader[b] = leader[leader[b]];
    return b;
  };
  for (std::size_t b = 0; b < placement.blocks.size(); ++b) {
    for (const Dependency& input : placement.blocks[b].after)
      leader[find(static_cast<int>(b))] = find(input.block);
  }
  std::map<int, std::vector<int>> by_leader;
  std::vector<std::vector<int>> parts;
  for (const int b : topological_order(placement)) by_leader[find(b)].push_back(b);
  for (auto& [_, part] : by_leader) parts.push_back(std::move(part));
  // The chain whose first device has the lower index is the one down.
  std::stable_sort(parts.begin(), parts.end(), [&](const auto& a, const auto& b) {
    return placement.blocks[a.front()].devices < placement.blocks[b.front()].devices;
  });
  return parts;
}

}  // namespace

int Chain::stage_of(int rank, int chunk) const {
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (stages[s].rank == rank && stages[s].chunk == chunk) return static_cast<int>(s);
  }
  return -1;
}

ChainOrNot find_chain(const Placement& placement) {
  try {
    return {Detector(placement, topological_order(placement)).run(), ""};
  } catch (const NotAChain& reason) {
    return {std::nullopt, reason.what()};
  }
}

TwoWayOrNot find_two_way(const Placement& placement) {
  try {
    const std::vector<std::vector<int>> parts = components(placement);
    if (parts.size() != 2) {
      throw NotAChain("the placement has " + counted(parts.size(), "independent part"));
    }
    TwoWay both{Detector(placement, parts[0]).run(), Detector(placement, parts[1]).run()};
    if (both.down.shape != ChainShape::single || both.up.shape != ChainShape::single)
      throw NotAChain("a chain has several chunks per device");
    if (!std::equal(both.down.devices.begin(), both.down.devices.end(), both.up.devices.rbegin(),
                    both.up.devices.rend())) {
      throw NotAChain("the chains do not run through the same devices in opposite directions");
    }
    if (both.depth() % 2 != 0) throw NotAChain("the number of devices is odd");
    if (both.down.training != both.up.training || both.down.split != both.up.split)
      throw NotAChain("the chains differ in their backwards");
    return {std::move(both), ""};
  } catch (const NotAChain& reason) {
    return {std::nullopt, reason.what()};
  }
}

}  // namespace ostinato
