// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/lane_queue.h"

#include <ATen/ThreadLocalState.h>

#include <utility>

namespace ostinato {

LaneQueue::LaneQueue(at::Device device) : stream_(device), threaded_(device.is_cpu()) {
  if (threaded_) thread_ = std::thread([this] { serve(); });
}

LaneQueue::~LaneQueue() {
  if (!threaded_) return;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

LaneQueue::Ended LaneQueue::run(std::function<void()> work, const std::vector<at::Tensor>& inputs,
                                std::vector<Before> before) {
  std::packaged_task<void()> task([work = std::move(work), before, state = at::ThreadLocalState()] {
    const at::ThreadLocalStateGuard as_caller(state);
    for (const Before& one : before) one.ended.get();
    work();
  });
  Ended ended = task.get_future().share();
  if (!threaded_) {
    stream_.after_current();
    for (const Before& one : before) stream_.after(one.made);
    for (const at::Tensor& tensor : inputs) stream_.takes(tensor);
    const auto here = stream_.enter();
    task();
    return ended;
  }
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(task));
  }
  changed_.notify_one();
  return ended;
}

void LaneQueue::wait(const Ended& ended, const std::function<std::vector<at::Tensor>()>& outputs,
                     const c10::Event* made) {
  ended.get();
  if (threaded_) return;
  stream_.before_current(made);
  for (const at::Tensor& tensor : outputs())
    if (tensor.defined()) stream_.let_go_by_current(tensor);
}

void LaneQueue::serve() {
  while (true) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closing_ || !waiting_.empty(); });
    if (closing_) return;
    std::packaged_task<void()> task = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    task();
  }
}

}  // namespace ostinato
