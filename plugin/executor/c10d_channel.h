#pragma once
// A channel over a c10d process group (gloo, NCCL, or any other backend with send and recv).

#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <vector>

#include "plugin/executor/channel.h"

namespace c10d {
class ProcessGroup;
}

namespace ostinato {

/// `ranks[d]` is the rank within `group` of the pipeline's device d. Tensors live on `device`.
std::unique_ptr<Channel> make_c10d_channel(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                           std::vector<int> ranks, at::Device device);

}  // namespace ostinato
