// SPDX-License-Identifier: Apache-2.0
#pragma once
// A channel over a c10d process group (gloo, NCCL, or any other backend with send and recv).

#include <c10/util/intrusive_ptr.h>

#include <map>
#include <memory>
#include <vector>

#include "plugin/executor/channel.h"

namespace c10d {
class ProcessGroup;
}

namespace ostinato {

/// Two-rank groups for the transfers to one peer and from it: separate streams on an accelerator.
struct LinkGroups {
  c10::intrusive_ptr<c10d::ProcessGroup> to, from;
};

/// `ranks[d]` is the rank within `group` of the pipeline's device d. Tensors live on `device`. `links`: by
/// pipeline rank; what has none goes over `group`. Throws ExecutionError for one that is not of two ranks.
std::unique_ptr<Channel> make_c10d_channel(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                           std::vector<int> ranks, at::Device device,
                                           std::map<int, LinkGroups> links = {});

}  // namespace ostinato
