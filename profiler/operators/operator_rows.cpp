// SPDX-License-Identifier: Apache-2.0
#include "profiler/operators/operator_rows.h"

#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "profiler/operators/spread.h"

namespace ostinato {
namespace {

struct Sum {
  std::int64_t calls = 0;
  Nanoseconds self_time = 0;
  Bytes allocated = 0;
  std::int64_t flops = 0;  ///< of the calls that have any
  bool has_flops = false;
};

using RowKey = std::tuple<int, std::string, std::string>;  // layer, phase, name

std::int64_t median(std::vector<std::int64_t> values) { return spread_of(std::move(values)).median; }

OperatorCost row_of(const RowKey& key, const std::map<int, Sum>& by_pass, int passes) {
  // Passes without this operator count as zeros.
  std::vector<std::int64_t> calls(passes - by_pass.size()), times(calls), bytes(calls), flops(calls);
  bool has_flops = false;
  for (const auto& [pass, sum] : by_pass) {
    calls.push_back(sum.calls);
    times.push_back(sum.self_time);
    bytes.push_back(sum.allocated);
    flops.push_back(sum.flops);
    has_flops = has_flops || sum.has_flops;
  }
  OperatorCost row;
  std::tie(row.layer, row.phase, row.name) = key;
  row.calls = median(std::move(calls));
  row.self_time = spread_of(std::move(times));
  row.allocated = median(std::move(bytes));
  if (has_flops) row.flops = median(std::move(flops));
  return row;
}

using SelfTime = std::function<Nanoseconds(const OperatorEvent&)>;

void add(const OperatorEvent& event, Nanoseconds self_time, Sum& sum) {
  ++sum.calls;
  sum.self_time += self_time;
  sum.allocated += event.self_allocated();
  if (event.flops == OperatorEvent::kUnknown) return;
  sum.flops += event.flops;
  sum.has_flops = true;
}

std::vector<OperatorCost> rows_with(const OperatorRecorder& recorder, const SelfTime& self_time) {
  std::map<RowKey, std::map<int, Sum>> sums;
  std::map<std::pair<int, std::string>, int> passes;
  for (const Pass& pass : recorder.passes()) ++passes[{pass.layer, pass.phase}];
  for (const OperatorEvent& event : recorder.events()) {
    if (event.pass < 0) continue;
    const Pass& pass = recorder.passes()[event.pass];
    if (pass.phase != "forward" && pass.phase != "backward") continue;
    add(event, self_time(event), sums[{pass.layer, pass.phase, event.name()}][event.pass]);
  }
  std::vector<OperatorCost> rows;
  for (const auto& [key, by_pass] : sums) {
    rows.push_back(row_of(key, by_pass, passes.at({std::get<0>(key), std::get<1>(key)})));
  }
  return rows;
}

}  // namespace

std::vector<OperatorCost> operator_rows(const OperatorRecorder& recorder) {
  return rows_with(recorder, [](const OperatorEvent& event) { return event.self_time(); });
}

std::vector<OperatorCost> operator_rows(const OperatorRecorder& recorder, const cupti::DeviceTimes& times) {
  std::unordered_map<int, Nanoseconds> by_operator;
  for (const cupti::DeviceTime& time : times.ranges) by_operator[time.range.operator_id] += time.total();
  return rows_with(recorder, [&](const OperatorEvent& event) {
    const auto found = by_operator.find(event.number);
    return found == by_operator.end() ? Nanoseconds{0} : found->second;
  });
}

std::vector<int> forward_events(const std::vector<OperatorEvent>& events) {
  std::map<std::pair<std::uint64_t, std::int64_t>, int> innermost;  // by thread and sequence number
  std::vector<int> forwards(events.size(), -1);
  for (std::size_t i = 0; i < events.size(); ++i) {
    const OperatorEvent& event = events[i];
    if (!event.backward && event.sequence >= 0)
      innermost[{event.thread, event.sequence}] = static_cast<int>(i);
  }
  for (std::size_t i = 0; i < events.size(); ++i) {
    const OperatorEvent& event = events[i];
    if (!event.backward || event.sequence < 0) continue;
    const auto found = innermost.find({event.forward_thread, event.sequence});
    if (found != innermost.end()) forwards[i] = found->second;
  }
  return forwards;
}

std::int64_t out_of_range(const OperatorRecorder& recorder) {
  const std::vector<OperatorEvent> events = recorder.events();
  const std::vector<int> forwards = forward_events(events);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (forwards[i] < 0 || events[i].pass < 0 || events[forwards[i]].pass < 0) continue;
    const int layer = recorder.passes()[events[i].pass].layer;
    if (recorder.passes()[events[forwards[i]].pass].layer != layer) ++count;
  }
  return count;
}

}  // namespace ostinato
