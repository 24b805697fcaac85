#include "search/named.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "search/named/schedules.h"

namespace ostinato {
namespace {

/// What the chain of a schedule must look like.
struct Needs {
  ChainLayout layout;
  bool split = false;
  int chunks = 0;  ///< per device; 0: any number that the layout has
};

using ChainSchedule = Orders (*)(const Chain&, const Placement&, int);

struct Entry {
  std::string name;
  Needs needs;
  ChainSchedule orders;  ///< nullptr: gpipe, which every placement admits
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> table = {
      {"gpipe", {ChainLayout::irregular}, nullptr},
      {"1f1b", {ChainLayout::single}, one_f_one_b_orders},
      {"looped-bfs", {ChainLayout::looped}, looped_bfs_orders},
      {"interleaved-1f1b", {ChainLayout::looped}, interleaved_orders},
      {"zb-h1", {ChainLayout::single, true}, zb_h1_orders},
      {"zb-h2", {ChainLayout::single, true}, zb_h2_orders},
      {"zb-v", {ChainLayout::wave, true, 2}, zb_v_orders},
      {"v-half", {ChainLayout::wave, true, 2}, v_half_orders},
      {"v-min", {ChainLayout::wave, true, 2}, v_min_orders},
  };
  return table;
}

const char* in_words(ChainLayout layout) {
  switch (layout) {
    case ChainLayout::single:
      return "one chunk per device";
    case ChainLayout::looped:
      return "several chunks per device, looped";
    case ChainLayout::wave:
      return "several chunks per device, as a wave";
    case ChainLayout::irregular:
      return "chunks in no regular layout";
  }
  return "";
}

/// Empty where the chain is what the schedule needs.
std::string what_is_missing(const Entry& entry, const Chain& chain) {
  if (!chain.training) return entry.name + " is a schedule for training; this placement runs no backward";
  if (chain.layout != entry.needs.layout) {
    return entry.name + " needs " + in_words(entry.needs.layout) + "; this placement has " +
           in_words(chain.layout);
  }
  if (entry.needs.chunks > 0 && chain.chunks != entry.needs.chunks) {
    return entry.name + " needs " + std::to_string(entry.needs.chunks) +
           " chunks per device; this placement has " + std::to_string(chain.chunks);
  }
  if (entry.needs.split && !chain.split) {
    return entry.name + " needs the backward split into backward_input and backward_weight";
  }
  return "";
}

}  // namespace

const std::vector<std::string>& named_schedules() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Entry& entry : entries()) list.push_back(entry.name);
    return list;
  }();
  return names;
}

NamedSchedule named_schedule(const std::string& name, const Placement& placement, int micro_batches) {
  const auto entry =
      std::find_if(entries().begin(), entries().end(), [&](const Entry& e) { return e.name == name; });
  assert(entry != entries().end() && micro_batches >= 1);
  if (entry->orders == nullptr) return {gpipe_orders(placement, micro_batches), ""};
  const ChainOrNot found = find_chain(placement);
  if (!found.chain) {
    return {std::nullopt, name + " needs a chain of stages with one device each: " + found.why_not};
  }
  const std::string missing = what_is_missing(*entry, *found.chain);
  if (!missing.empty()) return {std::nullopt, missing};
  return {entry->orders(*found.chain, placement, micro_batches), ""};
}

}  // namespace ostinato
