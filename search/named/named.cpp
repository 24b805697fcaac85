// SPDX-License-Identifier: Apache-2.0
#include "search/named/named.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <variant>

#include "search/files/counted.h"
#include "search/named/schedules.h"

namespace ostinato {
namespace {

enum class OnLanes { refused, possible, needed };

/// What the chain of a schedule must look like.
struct Needs {
  ChainShape shape = ChainShape::single;
  bool split = false;
  int chunks = 0;  ///< per device; 0: any number that the shape has
  OnLanes lanes = OnLanes::refused;
  bool or_single = false;  ///< of looped chunks: one a device, too

  bool has(ChainShape other) const { return other == shape || (or_single && other == ChainShape::single); }
};

/// For AnySchedule: what a schedule is not for.
struct Unless {
  bool inference = false;
  bool simple_chain = false;  ///< one chunk per device
};

using AnySchedule = Orders (*)(const Placement&, int);
using ChainSchedule = Orders (*)(const Chain&, const Placement&, int);
using TwoWaySchedule = Orders (*)(const TwoWay&, const Placement&, int);

struct Entry {
  std::string name;
  std::variant<AnySchedule, ChainSchedule, TwoWaySchedule> orders;
  Needs needs = {};    ///< of a ChainSchedule
  Unless unless = {};  ///< of an AnySchedule
};

const std::vector<Entry>& entries() {
  constexpr Needs kSplit{ChainShape::single, true};
  constexpr Needs kLooped{ChainShape::looped};
  constexpr Needs kWave{ChainShape::wave};
  constexpr Needs kV{ChainShape::wave, false, 2};
  constexpr Needs kSplitV{ChainShape::wave, true, 2};
  static const std::vector<Entry> table = {
      {"gpipe", gpipe_orders},
      {"1f1b", one_f_one_b_orders, {ChainShape::single, false, 0, OnLanes::possible}},
      {"1f1b+", one_f_one_b_plus_orders, {}, {true, true}},
      {"looped-bfs", looped_bfs_orders, kLooped},
      {"interleaved-1f1b", interleaved_orders, {ChainShape::looped, false, 0, OnLanes::possible}},
      {"combined-1f1b", combined_1f1b_orders, {ChainShape::looped, false, 0, OnLanes::needed, true}},
      {"interleaved-zb", interleaved_zb_orders, {ChainShape::looped, true}},
      {"zb-h1", zb_h1_orders, kSplit},
      {"zb-h2", zb_h2_orders, kSplit},
      {"zb-1p", zb_1p_orders, kSplit},
      {"zb-2p", zb_2p_orders, kSplit},
      {"zb-auto", zb_auto_orders, kSplit},
      {"zb-v", zb_v_orders, kSplitV},
      {"v-half", v_half_orders, kSplitV},
      {"v-min", v_min_orders, kSplitV},
      {"hanayo", hanayo_orders, kWave},
      {"dualpipe-v", dual_pipe_v_orders, kV},
      {"chimera", chimera_orders},
      {"dualpipe", dual_pipe_orders},
  };
  return table;
}

const char* in_words(ChainShape shape) {
  switch (shape) {
    case ChainShape::single:
      return "one chunk per device";
    case ChainShape::looped:
      return "several chunks per device, looped";
    case ChainShape::wave:
      return "several chunks per device, as a wave";
    case ChainShape::irregular:
      return "chunks in no regular layout";
  }
  return "";
}

std::string needs_training(const std::string& name) {
  return name + " is a schedule for training; this placement runs no backward";
}

bool trains(const Placement& placement) {
  return std::any_of(placement.blocks.begin(), placement.blocks.end(),
                     [](const Block& b) { return b.kind != Kind::forward && b.kind != Kind::other; });
}

/// Empty where the placement is none of what the schedule is not for.
std::string what_is_against(const std::string& name, const Unless& unless, const Placement& placement,
                            const ChainOrNot& found) {
  if (unless.inference && !trains(placement)) return needs_training(name);
  if (!unless.simple_chain) return "";
  if (!found.chain || found.chain->shape != ChainShape::single) return "";
  return name + " is not for a chain with one chunk per device: use 1f1b there";
}

/// Empty where the chain is what the schedule needs.
std::string what_is_missing(const std::string& name, const Needs& needs, const Chain& chain) {
  if (!chain.training) return needs_training(name);
  if (chain.lanes && needs.lanes == OnLanes::refused) return name + " is not for devices with lanes";
  if (!chain.lanes && needs.lanes == OnLanes::needed) return name + " needs devices with lanes";
  if (!needs.has(chain.shape)) {
    return name + " needs " + in_words(needs.shape) + "; this placement has " + in_words(chain.shape);
  }
  if (needs.chunks > 0 && chain.chunks != needs.chunks) {
    return name + " needs " + counted(needs.chunks, "chunk") + " per device; this placement has " +
           std::to_string(chain.chunks);
  }
  if (needs.split && !chain.split)
    return name + " needs the backward split into backward_input and backward_weight";
  return "";
}

/// Writes the orders of one schedule, or says why not.
struct Write {
  const std::string& name;
  const Entry& entry;
  const Placement& placement;
  int micro_batches;
  const Chains& chains;

  NamedSchedule operator()(AnySchedule orders) const {
    const std::string against = what_is_against(name, entry.unless, placement, chains.one);
    if (!against.empty()) return {std::nullopt, against};
    return written(orders(placement, micro_batches));
  }

  NamedSchedule operator()(ChainSchedule orders) const {
    const ChainOrNot& found = chains.one;
    if (!found.chain)
      return {std::nullopt, name + " needs a chain of stages with one device each: " + found.why_not};
    const std::string missing = what_is_missing(name, entry.needs, *found.chain);
    if (!missing.empty()) return {std::nullopt, missing};
    return written(orders(*found.chain, placement, micro_batches));
  }

  NamedSchedule operator()(TwoWaySchedule orders) const {
    const TwoWayOrNot& found = chains.two;
    if (!found.chains)
      return {std::nullopt, name + " needs two chains in opposite directions: " + found.why_not};
    if (!found.chains->down.training) return {std::nullopt, needs_training(name)};
    return written(orders(*found.chains, placement, micro_batches));
  }

  NamedSchedule written(Orders orders) const {
    if (orders.empty()) return {std::nullopt, name + " finds no order within the memory"};
    return {std::move(orders), ""};
  }
};

}  // namespace

const std::vector<std::string>& named_schedules() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Entry& entry : entries()) list.push_back(entry.name);
    return list;
  }();
  return names;
}

NamedSchedule named_schedule(const std::string& name, const Placement& placement, int micro_batches,
                             const Chains& chains) {
  const auto entry =
      std::find_if(entries().begin(), entries().end(), [&](const Entry& e) { return e.name == name; });
  assert(entry != entries().end() && micro_batches >= 1);
  return std::visit(Write{name, *entry, placement, micro_batches, chains}, entry->orders);
}

NamedSchedule named_schedule(const std::string& name, const Placement& placement, int micro_batches) {
  return named_schedule(name, placement, micro_batches, Chains(placement));
}

}  // namespace ostinato
