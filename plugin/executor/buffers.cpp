#include "plugin/executor/buffers.h"

#include <ATen/ops/empty.h>

namespace ostinato {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    give_back();
    pool_ = std::exchange(other.pool_, nullptr);
    tensor_ = std::move(other.tensor_);
  }
  return *this;
}

void Buffer::give_back() {
  if (pool_) std::exchange(pool_, nullptr)->put(std::move(tensor_));
}

Buffer BufferPool::take(const TensorSpec& spec) {
  auto& free = free_[{spec.dtype, spec.sizes}];
  if (!free.empty()) {
    Buffer buffer(this, std::move(free.back()));
    free.pop_back();
    return buffer;
  }
  meter_.add(spec.bytes());
  return Buffer(this, at::empty(spec.sizes, at::TensorOptions().dtype(spec.dtype).device(device_)));
}

void BufferPool::put(at::Tensor tensor) {
  if (tensor.storage().use_count() == 1 && tensor.use_count() == 1) {
    auto& free = free_[{tensor.scalar_type(), tensor.sizes().vec()}];
    free.push_back(std::move(tensor));
  } else {
    meter_.add(-static_cast<std::int64_t>(tensor.nbytes()));
  }
}

void BufferPool::clear() {
  for (const auto& [key, tensors] : free_) {
    for (const at::Tensor& t : tensors) meter_.add(-static_cast<std::int64_t>(t.nbytes()));
  }
  free_.clear();
}

}  // namespace ostinato
