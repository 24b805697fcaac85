// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/side_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "plugin/executor/moments.h"

namespace ostinato {

SideStream::SideStream(at::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl of_type(device.type());
  stream_ = of_type.getNewStream(device.has_index() ? device : of_type.getDevice());
  event_.emplace(device.type());
}

void SideStream::after(const c10::Event* event) {
  if (stream_ && event) event->block(*stream_);
}

void SideStream::after_current() {
  if (!stream_) return;
  event_->record(c10::impl::VirtualGuardImpl(stream_->device_type()).getStream(stream_->device()));
  event_->block(*stream_);
}

void SideStream::before_current(const c10::Event* event) const {
  if (!stream_ || !event) return;
  event->block(c10::impl::VirtualGuardImpl(stream_->device_type()).getStream(stream_->device()));
}

void SideStream::takes(const at::Tensor& tensor) const {
  if (!stream_ || !tensor.defined()) return;
  c10::impl::VirtualGuardImpl(stream_->device_type())
      .recordDataPtrOnStream(tensor.storage().data_ptr(), *stream_);
}

void SideStream::let_go_by_current(const at::Tensor& tensor) const {
  if (!stream_) return;
  const c10::impl::VirtualGuardImpl of_type(stream_->device_type());
  of_type.recordDataPtrOnStream(tensor.storage().data_ptr(), of_type.getStream(stream_->device()));
}

bool SideStream::wait(std::chrono::nanoseconds timeout) {
  if (!stream_) return true;
  event_->record(*stream_);
  return comes_within(timeout, [this] { return event_->query(); });
}

}  // namespace ostinato
