// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/host_channel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "plugin/executor/error.h"
#include "plugin/executor/mailbox.h"

namespace ostinato {
namespace {

using Tensors = std::vector<at::Tensor>;
using Timeout = std::chrono::nanoseconds;
using Words = Mailbox::Address;  ///< what two ranks say to each other in open()

/// Offers instead of a mailbox: there is none. The process is named all the same.
constexpr std::int64_t kNoFile = -1;

std::int64_t bytes_of(const Tensors& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

/// A rank of the same host; what goes to it and comes from it.
struct Peer {
  PeerProcess process;
  std::optional<Mailbox> out, in;  ///< none: messages go by the other channel
  std::int64_t sent = 0;           ///< messages in the mailboxes so far
  std::int64_t received = 0;
};

/// Waits in slices, between which it may be told to give up.
class InMemory : public Transfer {
 public:
  void give_up() override { given_up_ = true; }

 protected:
  template <typename Wait>
  bool wait_in_slices(Timeout timeout, Wait wait) const {
    const auto begin = std::chrono::steady_clock::now();
    for (Timeout left = timeout;; left = timeout - (std::chrono::steady_clock::now() - begin)) {
      if (wait(std::clamp<Timeout>(left, Timeout{0}, kSlice))) return true;
      if (given_up_ || left <= kSlice) return false;
    }
  }

 private:
  static constexpr Timeout kSlice = std::chrono::milliseconds(250);
  std::atomic<bool> given_up_ = false;
};

class Sent : public InMemory {
 public:
  Sent(Peer& peer, std::int64_t message) : peer_(peer), message_(message) {}
  bool wait(Timeout timeout) override {
    return wait_in_slices(
        timeout, [this](Timeout slice) { return peer_.out->wait_taken(message_, slice, peer_.process); });
  }

 private:
  Peer& peer_;
  std::int64_t message_;
};

class Arriving : public InMemory {
 public:
  Arriving(Peer& peer, std::int64_t message, Tensors tensors)
      : peer_(peer), message_(message), tensors_(std::move(tensors)) {}

  bool wait(Timeout timeout) override {
    const bool here = wait_in_slices(
        timeout, [this](Timeout slice) { return peer_.in->wait_for(message_, slice, peer_.process); });
    if (!here) return false;
    const std::byte* from = peer_.in->slot(message_);
    for (const at::Tensor& tensor : tensors_) {
      std::copy_n(from, tensor.nbytes(), static_cast<std::byte*>(tensor.mutable_data_ptr()));
      from += tensor.nbytes();
    }
    peer_.in->take(message_);
    return true;
  }

 private:
  Peer& peer_;
  std::int64_t message_;
  Tensors tensors_;
};

class HostChannel : public Channel {
 public:
  HostChannel(std::unique_ptr<Channel> other, std::int64_t bytes) : other_(std::move(other)), bytes_(bytes) {}

  void open(const std::map<int, int>& messages, Timeout timeout) override;
  std::unique_ptr<Transfer> send(Tensors tensors, int rank) override;
  std::unique_ptr<Transfer> receive(Tensors tensors, int rank) override;
  bool is_near(int rank, std::int64_t bytes) const override;
  Posting posting() const override { return other_->posting(); }
  at::Device device() const override { return other_->device(); }

 private:
  std::map<int, Words> exchange(const std::map<int, Words>& mine, Timeout timeout);

  std::unique_ptr<Channel> other_;
  std::int64_t bytes_;         ///< of a mailbox
  std::map<int, Peer> peers_;  ///< by rank
};

Words offer(const std::optional<Mailbox>& mailbox) {
  return mailbox ? mailbox->address() : Words{::getpid(), kNoFile};
}

void HostChannel::open(const std::map<int, int>& messages, Timeout timeout) {
  other_->open(messages, timeout);
  if (!device().is_cpu()) return;
  const bool can_watch = PeerProcess(::getpid()).is_known();
  std::map<int, Words> offers;
  for (const auto& [rank, count] : messages) {
    Peer& peer = peers_[rank];
    if (can_watch && count > 0) peer.out = Mailbox::make(count, slot_bytes(count, bytes_));
    offers[rank] = offer(peer.out);
  }
  std::map<int, Words> answers;
  for (const auto& [rank, address] : exchange(offers, timeout)) {
    Peer& peer = peers_[rank];
    peer.process = PeerProcess(address[0]);
    if (can_watch && address[1] != kNoFile) peer.in = Mailbox::open(address);
    answers[rank] = {peer.in.has_value()};
  }
  for (const auto& [rank, answer] : exchange(answers, timeout)) {
    Peer& peer = peers_[rank];
    if (answer[0] == 0) peer.out.reset();
    if (peer.out) peer.out->close();
  }
}

std::map<int, Words> HostChannel::exchange(const std::map<int, Words>& mine, Timeout timeout) {
  const auto words = at::TensorOptions().dtype(at::kLong);
  std::vector<std::unique_ptr<Transfer>> sends;
  std::map<int, std::pair<at::Tensor, std::unique_ptr<Transfer>>> receives;
  for (const auto& [rank, said] : mine) {
    const at::Tensor out = at::empty({static_cast<std::int64_t>(said.size())}, words);
    std::copy(said.begin(), said.end(), out.mutable_data_ptr<std::int64_t>());
    sends.push_back(other_->send({out}, rank));
    const at::Tensor in = at::empty_like(out);
    receives[rank] = {in, other_->receive({in}, rank)};
  }
  std::map<int, Words> theirs;
  for (const auto& [rank, receive] : receives) {
    if (!receive.second->wait(timeout)) {
      throw TimeoutError("rank " + std::to_string(rank) + " did not create its executor in time");
    }
    const auto* const said = receive.first.const_data_ptr<std::int64_t>();
    std::copy_n(said, theirs[rank].size(), theirs[rank].begin());
  }
  for (const auto& send : sends) send->wait(timeout);
  return theirs;
}

bool HostChannel::is_near(int rank, std::int64_t bytes) const {
  const auto found = peers_.find(rank);
  return found != peers_.end() && found->second.out && found->second.in &&
         bytes <= std::min(found->second.out->slot_bytes(), found->second.in->slot_bytes());
}

std::unique_ptr<Transfer> HostChannel::send(Tensors tensors, int rank) {
  const auto found = peers_.find(rank);
  if (found == peers_.end() || !found->second.out || bytes_of(tensors) > found->second.out->slot_bytes()) {
    return other_->send(std::move(tensors), rank);
  }
  Peer& peer = found->second;
  const std::int64_t message = peer.sent++;
  if (!peer.out->is_free(message)) throw ExecutionError("more messages are in flight than were announced");
  std::byte* to = peer.out->slot(message);
  for (const at::Tensor& tensor : tensors) {
    // Not memcpy: a tensor without elements has no address.
    to = std::copy_n(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes(), to);
  }
  peer.out->put(message);
  return std::make_unique<Sent>(peer, message);
}

std::unique_ptr<Transfer> HostChannel::receive(Tensors tensors, int rank) {
  const auto found = peers_.find(rank);
  if (found == peers_.end() || !found->second.in || bytes_of(tensors) > found->second.in->slot_bytes()) {
    return other_->receive(std::move(tensors), rank);
  }
  return std::make_unique<Arriving>(found->second, found->second.received++, std::move(tensors));
}

}  // namespace

std::int64_t slot_bytes(int messages, std::int64_t bytes) { return bytes / std::max(messages, 4); }

std::unique_ptr<Channel> make_host_channel(std::unique_ptr<Channel> other, std::int64_t bytes) {
  return std::make_unique<HostChannel>(std::move(other), bytes);
}

}  // namespace ostinato
