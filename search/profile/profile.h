// SPDX-License-Identifier: Apache-2.0
#pragma once
// A profile: the measured cost and memory of a model on one kind of device (docs/profile-format.md).
// The profiler fills it, the partition reads it. docs/profile-format.md describes every field of the file.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "search/placement/placement.h"
#include "search/profile/restrictions.h"

namespace ostinato {

/// Times of one thing over the repeats, in nanoseconds.
struct Spread {
  Nanoseconds median = 0;
  Nanoseconds low = 0;   ///< lower quartile
  Nanoseconds high = 0;  ///< upper quartile
  int repeats = 0;       ///< 0: not measured
};

/// What a layer reads from an earlier one, or shows of its memory.
struct LayerInput {
  int layer = 0;  ///< index; smaller than the reading layer's
  Bytes bytes = 0;

  friend bool operator==(const LayerInput&, const LayerInput&) = default;
};

/// One layer of the model for one micro-batch.
struct LayerCost {
  int index = 0;
  std::string name;  ///< "3:Block", say
  int same_as = -1;  ///< index of the identical layer whose measurement this row repeats; -1: measured itself
  Spread forward;
  Spread backward;        ///< whole
  Spread backward_input;  ///< of the split backward; repeats == 0 where it was not measured
  Spread backward_weight;
  Bytes kept = 0;                  ///< held from the end of the forward to the end of the backward
  Bytes forward_workspace = 0;     ///< peak inside the forward above what it keeps, all its outputs included
  Bytes backward_workspace = 0;    ///< with the gradients that arrive and leave
  std::vector<LayerInput> passed;  ///< memory of earlier layers that it reads and no backward needs
  std::vector<LayerInput> released;  ///< that its outputs show and, of all backwards, only later layers' need
  Bytes parameters = 0;
  Bytes gradients = 0;
  Bytes optimizer_state = 0;
  Bytes tied = 0;           ///< of these three at most what a device with an earlier layer holds already
  Bytes step_together = 0;  ///< that the end of a step takes for a while, when nothing is kept: over the
                            ///< layers of a device these add up ...
  Bytes step_alone = 0;     ///< ... and of these the largest counts
  std::optional<Nanoseconds>
      recompute;               ///< of its forward run again for a backward; absent: as the first time
  Nanoseconds step_time = 0;   ///< of the optimizer's step, once a step, for its parameters; 0: not measured
  Bytes waiting = 0;           ///< between the halves of a split backward, above what is kept
  Bytes weight_workspace = 0;  ///< peak inside the second of those halves, above what waits
  Bytes labels = 0;            ///< that its loss reads: held from the forward to the end of the backward
  /// Peak inside a forward that keeps no graph, above its inputs; absent: not measured.
  std::optional<Bytes> inference_workspace;
  std::optional<Bytes> reduced;  ///< of its gradients, what replicas send to sum them; absent: all
  Bytes sent = 0;  ///< of its outputs, what no backward up to its own holds: a stage that ends here
                   ///< holds it until it is known to have been received
  /// What a transfer into this layer carries (floating point inputs come back as gradients).
  Bytes input_bytes = 0;
  Bytes output_bytes = 0;
  std::optional<std::vector<LayerInput>> after;  ///< absent: it reads the output of the layer before it
  /// Of its device, on which it runs beside what computes (lanes.h); empty: it computes.
  std::string lane = {};
  std::string digest;  ///< of its name and the names and shapes of its parameters; empty: not known
  /// A part of it may lie on each of several devices (search/partition/stage_cost.h).
  bool shardable = false;

  /// What its device holds throughout, and the least of it where that has layers that it is tied to.
  Bytes held() const { return parameters + gradients + optimizer_state; }
  Bytes least_held() const { return std::max<Bytes>(0, held() - tied); }
  /// Whether its backward was measured in two halves.
  bool halves() const { return backward_input.repeats > 0 && backward_weight.repeats > 0; }
};

struct OperatorCost {
  int layer = -1;          ///< index of the layer it ran in; -1: outside all
  std::string name;        ///< "aten::addmm"
  std::string phase;       ///< "forward" | "backward"
  std::int64_t calls = 0;  ///< per micro-batch
  Spread self_time;        ///< without the operators that it called, summed over the calls of a micro-batch
  Bytes allocated = 0;     ///< bytes allocated inside it, per micro-batch
  std::optional<std::int64_t> flops;  ///< of its calls in a micro-batch, where they are known
};

/// latency + bytes / bandwidth, fitted to measured send/receive times of one directed pair.
struct TransferCost {
  int from = 0;
  int to = 0;
  Link link;
  double residual = 0;       ///< largest relative error of the fit over the measured sizes
  std::string backend = "";  ///< that it was measured over: "gloo", "nccl"; "given" by the user; "": unknown
};

struct Completeness {
  bool complete = false;
  std::int64_t expected = 0;  ///< operator launches counted independently
  std::int64_t seen = 0;
  std::int64_t dropped = 0;
  std::int64_t out_of_range = 0;
  std::string reason;  ///< why it is not complete
};

/// What a rank that trains holds and spends beside its layers, whichever it has. All 0: not known.
struct RankCost {
  Bytes held = 0;              ///< always
  Bytes step = 0;              ///< for a while at the end of a step, when nothing is kept
  int buffers = 0;             ///< that receive messages, of each size
  Nanoseconds forward = 0;     ///< of each forward block: the engine's own code, and sending what it made
  Nanoseconds backward = 0;    ///< of each backward block, or half of one
  Nanoseconds read = 0;        ///< for a batch, on the ranks with the first and the last layer
  Nanoseconds step_time = 0;   ///< of a step beside blocks and the optimizer's: the loss's way to all ranks
  std::int64_t computing = 0;  ///< millionths of its time in which a layer computes on a CPU, and does not
                               ///< wait, sleep or read; 0: not known, and taken to be all
  std::int64_t average = 0;    ///< millionths of their medians that forwards and backwards take on average;
                               ///< 0: not known, and taken to be the medians

  friend bool operator==(const RankCost&, const RankCost&) = default;
};

/// Over how many data-parallel ranks ZeRO divides what LayerCost has of the optimizer: of one of them.
struct ZeroRanks {
  int ranks = 0;      ///< of the run that was profiled; 0: each has all of it
  bool step = false;  ///< LayerCost::step_together, too, and not `optimizer_state` alone

  friend bool operator==(const ZeroRanks&, const ZeroRanks&) = default;
};

/// What the layers take for a micro-batch of another size, by layer; medians.
struct SizeCost {
  std::int64_t size = 0;  ///< samples times length, as Profile::tokens
  std::vector<Nanoseconds> forward;
  std::vector<Nanoseconds> backward;

  friend bool operator==(const SizeCost&, const SizeCost&) = default;
};

/// What the training script runs without a plan.
struct OwnRun {
  std::vector<int> layers;  ///< of each stage of DeepSpeed's partition, in turn; empty: not known
  int micro_batches = 0;    ///< of a step
  Spread step;              ///< of a step of DeepSpeed's own engine, the optimizer's included
};

struct Profile {
  std::string model;         ///< name of the model
  std::string model_sha256;  ///< of its layer names and parameter shapes
  struct {
    std::string name, kind, driver, torch, cuda, clocks;
  } device;
  std::string timer;       ///< "cpu" | "cupti" | "device-events"
  std::string timer_note;  ///< why a better clock could not be had; "": nothing to say
  int warm_up = 0;
  int repeats = 0;
  int micro_batch_size = 0;
  /// Ranks that hold a part of each layer (tensor slicing); `layers` has what one of them takes.
  int slices = 1;
  /// Samples times length of the micro-batch that `layers` were measured with; 0: not known.
  std::int64_t tokens = 0;
  std::vector<SizeCost> sizes;  ///< rising; empty: one size was measured
  RankCost rank;
  ZeroRanks zero;
  Restrictions restrictions;  ///< of the model and the run that was profiled
  OwnRun run;
  std::vector<LayerCost> layers;  ///< in model order
  std::vector<OperatorCost> operators;
  std::vector<TransferCost> transfers;
  Completeness completeness;
};

}  // namespace ostinato
