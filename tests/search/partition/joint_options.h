// SPDX-License-Identifier: Apache-2.0
#pragma once
// Options of the joint choice for small models: little work, and no limit of time that a busy machine would
// reach.

#include "search/partition/joint.h"

namespace ostinato::test {

inline JointOptions joint_options(int devices, int micro_batches) {
  JointOptions options;
  options.partition.devices = devices;
  options.partition.micro_batches = options.search.micro_batches = micro_batches;
  options.search.time_limit_seconds = 0;
  options.search.effort = 10;
  return options;
}

}  // namespace ostinato::test
