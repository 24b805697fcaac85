// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <set>

namespace ostinato {
namespace {

struct Access {
  std::string name;
  FakeTask task;
};

struct Block {
  FakeStream owner;
  Access write;               ///< the last one
  std::vector<Access> reads;  ///< since then
  std::set<FakeStream> told{};
};

std::mutex mutex;  ///< of what follows
std::map<const void*, Block> blocks;
std::map<std::string, FakeTask> tasks;
std::vector<std::string> races;

void expect_before(const Access& first, const Access& second, const std::string& what) {
  const bool same = first.task.stream == second.task.stream && first.task.number == second.task.number;
  if (!same && !comes_before(first.task, second.task))
    races.push_back(second.name + " " + what + ", without waiting for " + first.name);
}

void expect_ended(const Block& block, const Access& access) {
  bool ended = comes_before(access.task, block.owner);
  for (const FakeStream& stream : block.told) ended = ended || comes_before(access.task, stream);
  if (!ended) races.push_back("memory is given back that " + access.name + " may still use");
}

void allocated(const void* memory) {
  const std::lock_guard lock(mutex);
  blocks[memory] = {fake_current_stream(), {"its allocation", fake_device_works(0)}, {}};
}

void freed(void* memory) {
  {
    const std::lock_guard lock(mutex);
    const Block& block = blocks.at(memory);
    expect_ended(block, block.write);
    for (const Access& read : block.reads) expect_ended(block, read);
    blocks.erase(memory);
  }
  ::operator delete(memory);
}

struct FakeAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = ::operator new(std::max<std::size_t>(bytes, 1));
    allocated(memory);
    return {
        memory, memory, &freed, {kFakeDevice, static_cast<c10::DeviceIndex>(fake_current_stream().first)}};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &freed; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

FakeAllocator allocator;
constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

using Type = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Place = std::optional<at::Device>;
using Format = std::optional<at::MemoryFormat>;

at::Tensor empty(at::IntArrayRef sizes, Type type, Layout, Place device, std::optional<bool>, Format format) {
  const c10::OptionalDeviceGuard here(device);
  return at::detail::empty_generic(sizes, &allocator, kKeys, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, Type type, Layout, Place device,
                         std::optional<bool>) {
  const c10::OptionalDeviceGuard here(device);
  return at::detail::empty_strided_generic(sizes, strides, &allocator, kKeys, c10::dtype_or_default(type));
}

/// The same bytes as a tensor of the host.
at::Tensor seen_by_host(const at::Tensor& tensor) {
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.scalar_type()));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  seen_by_host(to).copy_(seen_by_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  return copy_from(from, to, false);
}

void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
}

}  // namespace

const void* memory_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.storage().data_ptr().get() : nullptr;
}

void fake_task(const std::string& name, Nanoseconds time, const std::vector<const void*>& reads,
               const std::vector<const void*>& writes) {
  const std::lock_guard lock(mutex);
  const Access access{name, fake_device_works(time)};
  tasks[name] = access.task;
  for (const void* memory : reads) {
    const auto found = blocks.find(memory);
    if (found == blocks.end()) continue;
    expect_before(found->second.write, access, "reads memory");
    found->second.reads.push_back(access);
  }
  for (const void* memory : writes) {
    const auto found = blocks.find(memory);
    if (found == blocks.end()) continue;
    expect_before(found->second.write, access, "writes memory");
    for (const Access& read : found->second.reads) expect_before(read, access, "writes memory");
    found->second.write = access;
    found->second.reads.clear();
  }
}

FakeTask find_fake_task(const std::string& name) {
  const std::lock_guard lock(mutex);
  return tasks.at(name);
}

std::vector<std::string> fake_races() {
  const std::lock_guard lock(mutex);
  return std::exchange(races, {});
}

void fake_memory_is_used_on(const void* memory, const FakeStream& stream) {
  const std::lock_guard lock(mutex);
  const auto found = blocks.find(memory);
  if (found != blocks.end()) found->second.told.insert(stream);
}

}  // namespace ostinato
