// SPDX-License-Identifier: Apache-2.0
#pragma once
// The measured models of Zero Bubble (arXiv 2401.10241), with what their schedule "ZB-2p" leaves idle: in
// room for 2 p forwards on p devices, as a share of the longest span.
//
//   for (const PublishedSpan& cell : published_spans) search(placement_of(cell), {...span});
//
// Times and rates: sail-sg/zero-bubble-pipeline-parallelism f68d387, megatron/core/pipeline_parallel,
// efficiency.py; sequences of 1,024.

#include "search/placement/shapes.h"

namespace ostinato::test {

struct PublishedSpan {
  const char* model;
  int devices, micro_batches;
  Nanoseconds forward, input, weight, transfer;  ///< of one stage; in microseconds
  Bytes hidden, heads;
  int rate;  ///< ten-thousandths

  Nanoseconds work() const { return micro_batches * (forward + input + weight); }
};

inline constexpr PublishedSpan published_spans[] = {
    {"1.5B", 8, 24, 18522, 18086, 9337, 601, 2304, 24, 433},
    {"1.5B", 8, 32, 18513, 18086, 9331, 626, 2304, 24, 39},
    {"1.5B", 8, 64, 18546, 18097, 9321, 762, 2304, 24, 26},
    {"6.2B", 8, 24, 29718, 29444, 19927, 527, 4096, 32, 29},
    {"6.2B", 8, 32, 29802, 29428, 19530, 577, 4096, 32, 22},
    {"6.2B", 8, 64, 29935, 29621, 19388, 535, 4096, 32, 10},
    {"14.6B", 16, 48, 11347, 11248, 8132, 377, 5120, 40, 66},
    {"14.6B", 16, 64, 11307, 11254, 8101, 379, 5120, 40, 54},
    {"14.6B", 16, 128, 11325, 11308, 8109, 378, 5120, 40, 28},
    {"28.3B", 32, 96, 10419, 10207, 7715, 408, 6144, 48, 38},
    {"28.3B", 32, 128, 10408, 10204, 7703, 408, 6144, 48, 29},
    {"28.3B", 32, 256, 10402, 10248, 7698, 460, 6144, 48, 18},
};

/// Of what a forward keeps, the input half of the backward gives back all but what the weights need.
inline Placement placement_of(const PublishedSpan& cell) {
  const Bytes for_weights = 32 * cell.hidden;
  ShapeOptions options{.devices = cell.devices,
                       .forward = cell.forward,
                       .backward = cell.input,
                       .weight = cell.weight,
                       .memory = 34 * cell.hidden + 5 * cell.heads * 1024};
  options.capacity = 2 * cell.devices * options.memory[0];
  options.link.latency = cell.transfer;
  Placement p = shape("v", options);
  for (Block& block : p.blocks) {
    if (block.kind == Kind::backward_input) block.memory = for_weights - options.memory[0];
    if (block.kind == Kind::backward_weight) block.memory = -for_weights;
  }
  return p;
}

}  // namespace ostinato::test
