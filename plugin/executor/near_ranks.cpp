// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/near_ranks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cassert>
#include <map>
#include <string>

#include "plugin/executor/error.h"
#include "plugin/executor/host_channel.h"

namespace ostinato {
namespace {

/// Messages to a rank that may be on their way at once.
constexpr int kMessages = 4;

/// Calls act(first element, elements) for every piece of a tensor that fits into a slot.
template <typename Act>
void for_pieces(const at::Tensor& tensor, Act act) {
  const std::int64_t most = slot_bytes(kMessages) / static_cast<std::int64_t>(tensor.element_size());
  for (std::int64_t begin = 0; begin < tensor.numel(); begin += most)
    act(begin, std::min(most, tensor.numel() - begin));
}

void check(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg())
    throw ExecutionError("ranks of one host exchange contiguous tensors on the CPU");
}

}  // namespace

NearRanks::NearRanks(std::unique_ptr<Channel> channel, int rank, int count, std::chrono::nanoseconds timeout)
    : channel_(std::move(channel)), rank_(rank), timeout_(timeout), sends_(count) {
  std::map<int, int> messages;
  for (int r = 0; r < count; ++r) {
    if (r != rank_) messages[r] = kMessages;
    buffers_.push_back(r == rank_ ? at::Tensor()
                                  : at::empty({slot_bytes(kMessages)}, at::TensorOptions().dtype(at::kByte)));
  }
  channel_->open(messages, timeout_);
}

NearRanks::~NearRanks() = default;

bool NearRanks::are_near() const {
  const int count = static_cast<int>(sends_.size());
  for (int r = 0; r < count; ++r) {
    if (r != rank_ && !channel_->is_near(r, slot_bytes(kMessages))) return false;
  }
  return true;
}

void NearRanks::complete(Transfer& transfer, int with) {
  const std::string who = "rank " + std::to_string(with) + " of " + std::to_string(sends_.size()) +
                          ", which runs a stage together with rank " + std::to_string(rank_) + " of them";
  try {
    if (transfer.wait(timeout_)) return;
  } catch (const ExecutionError& error) {
    throw ExecutionError(who + ": " + error.what());
  }
  throw TimeoutError(who + ", did not join their exchange within " +
                     std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(timeout_).count()) +
                     " ms");
}

void NearRanks::send(const at::Tensor& piece, int to) {
  auto& sends = sends_[to];
  if (static_cast<int>(sends.size()) == kMessages) {
    complete(*sends.front(), to);
    sends.pop_front();
  }
  sends.push_back(channel_->send({piece}, to));
}

void NearRanks::receive(const at::Tensor& piece, int from) {
  complete(*channel_->receive({piece}, from), from);
}

at::Tensor NearRanks::buffer(const at::Tensor& piece, int from) const {
  const auto bytes = static_cast<std::int64_t>(piece.nbytes());
  return buffers_[from].narrow(0, 0, bytes).view(piece.scalar_type());
}

void NearRanks::sum(const at::Tensor& tensor) {
  assert(are_near());
  check(tensor);
  const at::NoGradGuard no_gradient;
  const at::Tensor flat = tensor.detach().view({-1});
  const int count = static_cast<int>(sends_.size());
  for_pieces(flat, [&](std::int64_t begin, std::int64_t elements) {
    at::Tensor mine = flat.narrow(0, begin, elements);
    for (int r = 0; r < count; ++r) {
      if (r != rank_) send(mine, r);
    }
    at::Tensor total;
    for (int r = 0; r < count; ++r) {
      const at::Tensor part = r == rank_ ? mine : buffer(mine, r);
      if (r != rank_) receive(part, r);
      if (r == 0)
        total = part;
      else
        total.add_(part);
    }
    if (rank_ != 0) mine.copy_(total);
  });
}

std::vector<at::Tensor> NearRanks::gather(const at::Tensor& tensor) {
  assert(are_near());
  check(tensor);
  const at::NoGradGuard no_gradient;
  const int count = static_cast<int>(sends_.size());
  std::vector<at::Tensor> everyone;
  for (int r = 0; r < count; ++r) everyone.push_back(r == rank_ ? tensor.detach() : at::empty_like(tensor));
  for_pieces(tensor, [&](std::int64_t begin, std::int64_t elements) {
    const auto piece_of = [&](int r) { return everyone[r].view({-1}).narrow(0, begin, elements); };
    for (int r = 0; r < count; ++r) {
      if (r != rank_) send(piece_of(rank_), r);
    }
    for (int r = 0; r < count; ++r) {
      if (r != rank_) receive(piece_of(r), r);
    }
  });
  return everyone;
}

void NearRanks::broadcast(const at::Tensor& tensor, int from) {
  assert(are_near());
  check(tensor);
  const at::NoGradGuard no_gradient;
  const at::Tensor flat = tensor.detach().view({-1});
  const int count = static_cast<int>(sends_.size());
  for_pieces(flat, [&](std::int64_t begin, std::int64_t elements) {
    const at::Tensor piece = flat.narrow(0, begin, elements);
    if (rank_ != from) return receive(piece, from);
    for (int r = 0; r < count; ++r) {
      if (r != rank_) send(piece, r);
    }
  });
}

}  // namespace ostinato
