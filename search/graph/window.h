// SPDX-License-Identifier: Apache-2.0
#pragma once
// Can the last of a few vertices start on a device by some time, if each of them has one device? Private to
// bound.h.
//
// The jobs of a window are vertices that end in one, the last, each with a bound of when it can start on each
// device. Suppose that the last starts by `time`. Then a job has only devices on which it is neither reached
// too late nor too far from the last. What is left of these is narrowed from both ends by joins (join.h), and
// by the work that must share a device; where that empties none, one job is tried on each of its devices in
// turn. Where all fail, the last cannot start by then (docs/bounds.md, G5).
//
//   GraphWindow window(times, reach);
//   window.set_jobs(vertices);                          // by rank, the last one last
//   window.set_device(d, latest);
//   if (window.refuted(time)) ...                       // its reach on d is more than `time`, <= latest

#include <cstdint>
#include <vector>

#include "search/graph/graph.h"
#include "search/graph/join.h"
#include "search/graph/reach.h"

namespace ostinato::graph {

class GraphWindow {
 public:
  /// Seen from the end that `reach` is seen from.
  GraphWindow(const GraphTimes& times, const GraphReach& reach);

  /// With their reach as it is now. O(edges + jobs * devices).
  void set_jobs(const std::vector<int>& vertices);
  /// Where the last job runs. Times up to `latest` are to be tried.
  void set_device(int device, Ticks latest);
  /// True: it cannot start there by `time`. kMostAssumptions narrowings at most, each
  /// O(edges * devices^2) for the devices that are left.
  bool refuted(Ticks time);

  static constexpr int kMostJobs = 24;
  static constexpr int kMostDevices = 64;  ///< of the graph: sets of them are bits
  static constexpr int kMostAssumptions = 32;

 private:
  using Devices = std::uint64_t;
  using Jobs = std::uint64_t;
  struct Edge {
    int job;     ///< at the other end
    int sender;  ///< job whose tensor it is
  };
  struct State {
    std::vector<Ticks> head, tail;  ///< [job][device]: until its start; from its end to the start of the last
    std::vector<Devices> devices;   ///< [job]
    Jobs stale[2] = {0, 0};         ///< [From]: head, tail may rise after a change to a neighbour
  };
  enum From { start, end };
  enum class Outcome { same, narrower, refuted };

  static Devices only(int device) { return Devices{1} << device; }
  std::size_t at(int job, int device) const { return static_cast<std::size_t>(job) * device_count_ + device; }
  Ticks through(const State& s, int job, int device) const {
    const std::size_t i = at(job, device);
    return s.head[i] + duration_[i] + s.tail[i];
  }
  void find_paths();
  Ticks join(const State& s, int job, int device, From from);
  /// What follows from a head or a tail, or from fewer devices.
  void rose(State& s, int job, From from) const { s.stale[from] |= beside_[1 - from][job]; }
  void keep(State& s, int job, Devices devices) const;
  Outcome drop_late(State& s, int job, Ticks time) const;
  bool impossible(State& s, Ticks time);
  bool narrow(State& s, Ticks time);
  Outcome sweep(State& s, Ticks time, From from);
  Outcome share_groups(State& s) const;
  Outcome share_devices(State& s, Ticks time);
  Outcome order_pairs(State& s, int device, Ticks time) const;
  Outcome add_to(State& s, int device, Ticks time);
  bool in_turn(const State& s, int device, Ticks time);
  int widest(const State& s) const;

  const GraphTimes& times_;
  const GraphReach& reach_;
  const int device_count_;
  GraphLinks links_;
  std::vector<int> local_;                   ///< [vertex]: its job; -1: none
  std::vector<int> groups_;                  ///< [job]
  std::vector<std::vector<Edge>> edges_[2];  ///< [From][job]: to what is before it, seen from there
  std::vector<Jobs> beside_[2];              ///< [From][job]: the same as a set
  std::vector<Ticks> duration_;              ///< [job][device], 0 for the last
  std::vector<Ticks> hop_times_;             ///< [job][class]: of its tensor
  std::vector<Ticks> path_;                  ///< [job]
  State first_;
  int assumptions_ = 0;
  GraphJoin join_;
  std::vector<int> fixed_, by_tail_;  ///< jobs of one device
};

}  // namespace ostinato::graph
