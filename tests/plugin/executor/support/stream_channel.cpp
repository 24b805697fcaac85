// SPDX-License-Identifier: Apache-2.0
#include "tests/plugin/executor/support/stream_channel.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "tests/support/fake_memory.h"

namespace ostinato::testing {

struct StreamOp {
  int rank, peer;
  bool send;
  at::Tensor tensor;
  c10::Event ready, done;
  bool met = false;
};

namespace {

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

bool is_message(const at::Tensor& tensor) { return tensor.is_floating_point(); }

class StreamTransfer : public Transfer {
 public:
  StreamTransfer(StreamExchange& exchange, std::vector<std::shared_ptr<StreamOp>> ops,
                 std::vector<at::Tensor> tensors)
      : exchange_(exchange), ops_(std::move(ops)), tensors_(std::move(tensors)) {}
  bool wait(std::chrono::nanoseconds timeout) override {
    return std::all_of(ops_.begin(), ops_.end(),
                       [&](const auto& op) { return exchange_.wait(*op, timeout); });
  }

 private:
  StreamExchange& exchange_;
  std::vector<std::shared_ptr<StreamOp>> ops_;  ///< one for each tensor of the message
  std::vector<at::Tensor> tensors_;
};

}  // namespace

std::shared_ptr<StreamOp> StreamExchange::post(int rank, int peer, bool send, const at::Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  const at::Device device = tensor.device();
  const Key key = key_of(rank, peer, send);
  Line& line = lines_[key];
  if (!line.stream) line.stream = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
  auto op = std::make_shared<StreamOp>(
      StreamOp{rank, peer, send, tensor, c10::Event(device.type()), c10::Event(device.type())});
  op->ready.record(current_stream(device));
  if (is_message(tensor)) issued_[rank].emplace_back(peer, send);
  line.ops.push_back(op);
  meet(key);
  return op;
}

void StreamExchange::meet(const Key& key) {
  auto& ops = lines_[key].ops;
  while (!ops.empty()) {
    const std::shared_ptr<StreamOp> one = ops.front();
    const Key other_key = key_of(one->peer, one->rank, !one->send);
    auto& others = lines_[other_key].ops;
    if (others.empty() || others.front()->peer != one->rank || others.front()->send == one->send) return;
    const std::shared_ptr<StreamOp> other = others.front();
    ops.pop_front();
    others.pop_front();
    one->send ? run(*one, *other) : run(*other, *one);
    met_.notify_all();
    meet(other_key);
  }
}

void StreamExchange::tell(const StreamOp& send, const StreamOp& receive) {
  const bool message = is_message(send.tensor);
  const std::string pair = std::to_string(send.rank) + ">" + std::to_string(receive.rank);
  const std::string which = message ? std::to_string(messages_[{send.rank, receive.rank}]++) : "words";
  fake_task(pair + " " + which, message ? time_ : 0, {memory_of(send.tensor)}, {memory_of(receive.tensor)});
}

void StreamExchange::run(StreamOp& send, StreamOp& receive) {
  const c10::Stream from = *lines_[key_of(send.rank, send.peer, true)].stream;
  const c10::Stream to = *lines_[key_of(receive.rank, receive.peer, false)].stream;
  send.ready.block(from);
  receive.ready.block(to);
  c10::Event both(from.device_type());
  both.record(from);
  both.block(to);
  {
    const c10::StreamGuard here(to);
    receive.tensor.copy_(send.tensor);
    if (to.device_type() == kFakeDevice) tell(send, receive);
  }
  receive.done.record(to);
  receive.done.block(from);
  send.done.record(from);
  for (StreamOp* op : {&send, &receive}) {
    op->met = true;
    op->tensor.reset();
  }
}

bool StreamExchange::wait(const StreamOp& op, std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!met_.wait_for(lock, timeout, [&] { return op.met; })) return false;
  op.done.block(current_stream(op.done.device()));
  return true;
}

std::vector<std::pair<int, bool>> StreamExchange::issued(int rank) {
  const std::lock_guard lock(mutex_);
  return issued_[rank];
}

std::unique_ptr<Transfer> StreamChannel::post(std::vector<at::Tensor> tensors, int rank, bool send) {
  std::vector<std::shared_ptr<StreamOp>> ops;
  for (const at::Tensor& tensor : tensors) ops.push_back(exchange_.post(rank_, rank, send, tensor));
  return std::make_unique<StreamTransfer>(exchange_, std::move(ops), std::move(tensors));
}

std::unique_ptr<Transfer> StreamChannel::send(std::vector<at::Tensor> tensors, int rank) {
  return post(std::move(tensors), rank, true);
}

std::unique_ptr<Transfer> StreamChannel::receive(std::vector<at::Tensor> tensors, int rank) {
  return post(std::move(tensors), rank, false);
}

}  // namespace ostinato::testing
