// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/buffers.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ostinato {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    give_back();
    pool_ = std::exchange(other.pool_, nullptr);
    tensor_ = std::move(other.tensor_);
    order_ = std::move(other.order_);
    is_free_ = std::move(other.is_free_);
    wants_gradient_ = other.wants_gradient_;
  }
  return *this;
}

void Buffer::give_back() {
  if (pool_) std::exchange(pool_, nullptr)->put({std::move(tensor_), std::move(is_free_), 0});
}

Buffer BufferPool::take(const TensorSpec& spec, const Order& order) {
  auto& free = free_[{spec.dtype, spec.sizes}];
  if (!free.empty() && (device_.is_cpu() || free.front().since < computes_)) {
    // The CPU's caches hold the last one.
    const auto found = device_.is_cpu() ? free.end() - 1 : free.begin();
    Free next = std::move(*found);
    free.erase(found);
    // Who still compares the versions of what was handed on here (handed_on.h) means what lay here before.
    next.tensor.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(0));
    return Buffer(this, std::move(next.tensor), spec.requires_grad, order, std::move(next.event));
  }
  if (shapes_change_) clear();
  meter_.add(spec.bytes());
  const c10::InferenceMode ordinary(false);  // it is reused, where the caller's mode may be another one
  at::Tensor tensor = at::empty(spec.sizes, at::TensorOptions().dtype(spec.dtype).device(device_));
  // The allocator gives out memory whose last use was issued on this stream but may not have ended.
  std::unique_ptr<c10::Event> event;
  note(event);
  return Buffer(this, std::move(tensor), spec.requires_grad, order, std::move(event));
}

void BufferPool::note(std::unique_ptr<c10::Event>& event) const {
  if (device_.is_cpu()) return;
  if (!event) event = std::make_unique<c10::Event>(device_.type());
  event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

bool BufferPool::can_note(std::unique_ptr<c10::Event>& event) const {
  try {
    note(event);
    return true;
  } catch (const std::exception&) {
    return false;  // a device in a bad state; this runs in destructors, and who issues more is told
  }
}

void BufferPool::put(Free buffer) {
  const at::Tensor& tensor = buffer.tensor;
  if (tensor.storage().use_count() == 1 && tensor.use_count() == 1 && can_note(buffer.event)) {
    auto& free = free_[{tensor.scalar_type(), tensor.sizes().vec()}];
    buffer.since = computes_;
    free.push_back(std::move(buffer));
  } else {
    meter_.add(-static_cast<std::int64_t>(tensor.nbytes()));
  }
}

void BufferPool::clear() {
  for (const auto& [key, buffers] : free_) {
    for (const Free& b : buffers) meter_.add(-static_cast<std::int64_t>(b.tensor.nbytes()));
  }
  free_.clear();
}

}  // namespace ostinato
