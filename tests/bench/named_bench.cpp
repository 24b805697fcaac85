// SPDX-License-Identifier: Apache-2.0
// The search beside the named schedules, each at the memory that it holds, and on the inputs of zero bubble's
// automatic schedule.
//
//   named_bench memory   # 4, 8 and 16 devices; 2, 3 and 4 times as many micro-batches; both backwards
//   named_bench lanes    # on devices with lanes: 4 and 8 devices, three lengths of exchanges
//   named_bench span     # zero bubble's inputs: room for p / 2 to 2 p micro-batches; span
//   named_bench measured # its measured models beside what it published of them; span
//
// Prints one line a case, with the CPU time of the search on one thread; exit status 1 where the search is
// behind.

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "search/named/named.h"
#include "search/placement/shapes.h"
#include "search/search.h"
#include "tests/search/published_spans.h"
#include "tests/support/in_parts.h"

namespace ostinato {
namespace {

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Timed {
  Plan plan;
  double seconds = 0;
};

Timed timed_search(const Placement& placement, int micro_batches, Objective objective) {
  const double began = cpu_seconds();
  Plan plan =
      search(placement, {.micro_batches = micro_batches, .objective = objective, .time_limit_seconds = 0});
  return {std::move(plan), cpu_seconds() - began};
}

double percent(Nanoseconds ours, Nanoseconds theirs) {
  return 100.0 * (static_cast<double>(ours) / static_cast<double>(theirs) - 1);
}

/// What a schedule needs, and of all that need the same, the shortest.
struct Known {
  std::string name;
  Nanoseconds makespan = 0;
};

std::map<std::vector<Bytes>, Known> known_schedules(const Placement& placement, int micro_batches) {
  std::map<std::vector<Bytes>, Known> best;
  for (const std::string& name : named_schedules()) {
    const NamedSchedule named = named_schedule(name, placement, micro_batches);
    if (!named.orders) continue;
    const auto schedule = earliest_starts(placement, micro_batches, *named.orders);
    const Known known{name, makespan_of(placement, *schedule)};
    const auto [place, is_new] = best.emplace(peak_memory(placement, *schedule), known);
    if (!is_new && known.makespan < place->second.makespan) place->second = known;
  }
  return best;
}

/// One placement whose devices have, in turn, what each named schedule holds. Returns how often the search
/// was longer.
int compare_at_their_memory(Placement placement, int micro_batches) {
  int behind = 0;
  for (const auto& [memory, known] : known_schedules(placement, micro_batches)) {
    for (std::size_t d = 0; d < memory.size(); ++d)
      if (placement.devices[d].lane_of < 0) placement.devices[d].memory = memory[d];
    const Timed ours = timed_search(placement, micro_batches, Objective::makespan);
    behind += ours.plan.makespan > known.makespan ? 1 : 0;
    fmt::print(
        "{:14} m={:<3} {:16} room {:3}: {:6}   search {:6} ({}) {:+6.1f} % {:7.3f} s  {}\n", placement.name,
        micro_batches, known.name, *std::max_element(memory.begin(), memory.end()), known.makespan,
        ours.plan.makespan,
        ours.plan.optimal.makespan ? "optimal" : fmt::format("bound {}", ours.plan.lower_bound.makespan),
        percent(ours.plan.makespan, known.makespan), ours.seconds, ours.plan.search.method);
  }
  return behind;
}

int memory_cases() {
  int behind = 0;
  for (const int devices : {4, 8, 16}) {
    for (const char* kind : {"v", "looped", "wave", "x"}) {
      for (const Nanoseconds weight : {0, 8}) {
        for (const int factor : {2, 3, 4}) {
          const ShapeOptions options{
              .devices = devices, .forward = 10, .backward = weight > 0 ? 12 : 20, .weight = weight};
          // A micro-batch of x is one of each direction.
          const int micro_batches = factor * devices / (std::string(kind) == "x" ? 2 : 1);
          behind += compare_at_their_memory(shape(kind, options), micro_batches);
        }
      }
    }
  }
  return behind;
}

/// A stage computes 2 x 5 forwards and 2 x 10 backwards, and exchanges twice each way.
int lanes_cases() {
  int behind = 0;
  for (const int devices : {4, 8}) {
    for (const auto& [kind, chunks] : {std::pair("looped", 1), std::pair("looped", 2), std::pair("x", 1)}) {
      for (const Nanoseconds exchange : {2, 4, 8}) {
        for (const int factor : {2, 4}) {
          const ShapeOptions options{.devices = devices, .chunks = chunks, .forward = 10, .backward = 20};
          const int micro_batches = factor * devices / (std::string(kind) == "x" ? 2 : 1);
          behind += compare_at_their_memory(in_parts(shape(kind, options), exchange), micro_batches);
        }
      }
    }
  }
  return behind;
}

/// Times of a stage in the proportions of measured ones; of the last stage, which computes the loss, apart.
struct StageTimes {
  const char* name;
  Nanoseconds forward, input, weight, last_forward, last_input, last_weight, transfer;
};

Placement stages(const StageTimes& times, int devices, Bytes room) {
  const auto list = [&](Nanoseconds each, Nanoseconds last) {
    std::vector<Nanoseconds> values(devices, each);
    values.back() = last;
    return values;
  };
  ShapeOptions options{.devices = devices};
  options.forward = list(times.forward, times.last_forward);
  options.backward = list(times.input, times.last_input);
  options.weight = list(times.weight, times.last_weight);
  options.capacity = room;
  options.link.latency = times.transfer;
  return shape("v", options);
}

int compare_span(const StageTimes& times, int devices, int micro_batches, Bytes room) {
  const Placement placement = stages(times, devices, room);
  const NamedSchedule known = named_schedule("zb-auto", placement, micro_batches);
  const Nanoseconds theirs =
      known.orders ? span_of(placement, *earliest_starts(placement, micro_batches, *known.orders)) : 0;
  const Timed ours = timed_search(placement, micro_batches, Objective::span);
  fmt::print(
      "{:6} p={:<2} m={:<3} room {:2}: zb-auto {:9}   search {:9} ({}) {:+6.1f} % {:7.3f} s  {}\n",
      times.name, devices, micro_batches, room, theirs, ours.plan.span,
      ours.plan.optimal.objective ? "optimal" : fmt::format("bound {}", ours.plan.lower_bound.objective),
      percent(ours.plan.span, theirs), ours.seconds, ours.plan.search.method);
  return ours.plan.span > theirs ? 1 : 0;
}

int span_cases() {
  constexpr StageTimes kTimes[] = {{"unit", 1, 1, 1, 1, 1, 1, 0},
                                   {"even", 298, 297, 188, 298, 297, 188, 5},
                                   {"uneven", 290, 293, 192, 417, 387, 328, 5}};
  int behind = 0;
  for (const StageTimes& times : kTimes) {
    for (const int p : {4, 8, 16, 32}) {
      for (const int room : {p / 2, 3 * p / 4, p, 2 * p}) {
        for (const int m : {2 * p, 4 * p, 256}) behind += compare_span(times, p, m, room);
      }
    }
  }
  return behind;
}

/// What a device idles of the longest span, in per cent.
double idle(const test::PublishedSpan& cell, Nanoseconds span) { return -percent(cell.work(), span); }

int measured_cases() {
  int behind = 0;
  for (const test::PublishedSpan& cell : test::published_spans) {
    const Placement placement = placement_of(cell);
    const NamedSchedule known = named_schedule("zb-2p", placement, cell.micro_batches);
    const Nanoseconds theirs =
        span_of(placement, *earliest_starts(placement, cell.micro_batches, *known.orders));
    const Timed ours = timed_search(placement, cell.micro_batches, Objective::span);
    fmt::print(
        "{:5} p={:<2} m={:<3} idle: published {:.2f} %, zb-2p {:.3f} %, search {:.3f} % ({}) {:7.3f} s  {}\n",
        cell.model, cell.devices, cell.micro_batches, cell.rate / 100.0, idle(cell, theirs),
        idle(cell, ours.plan.span),
        ours.plan.optimal.objective
            ? "optimal"
            : fmt::format("bound {:.3f} %", idle(cell, ours.plan.lower_bound.objective)),
        ours.seconds, ours.plan.search.method);
    behind += ours.plan.span > theirs ? 1 : 0;
  }
  return behind;
}

}  // namespace
}  // namespace ostinato

int main(int count, char** arguments) {
  const std::string what = count == 2 ? arguments[1] : "";
  const std::map<std::string, int (*)()> kinds = {{"memory", ostinato::memory_cases},
                                                  {"lanes", ostinato::lanes_cases},
                                                  {"span", ostinato::span_cases},
                                                  {"measured", ostinato::measured_cases}};
  const auto kind = kinds.find(what);
  if (kind == kinds.end()) {
    fmt::print(stderr, "usage: named_bench memory | lanes | span | measured\n");
    return 2;
  }
  const int behind = kind->second();
  fmt::print("behind in {} cases\n", behind);
  return behind > 0 ? 1 : 0;
}
