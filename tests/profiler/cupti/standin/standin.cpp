// SPDX-License-Identifier: Apache-2.0
// The stand-in of standin.h. The names of the exported functions and the numbers below are CUPTI's.

#include "tests/profiler/cupti/standin/standin.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <utility>
#include <vector>

namespace {

constexpr std::uint32_t kMemcpy = 1, kMemset = 2, kDriver = 4, kRuntime = 5, kKernel = 10;
constexpr std::uint32_t kMemcpyPeer = 22, kExternal = 39;

const std::map<Work, std::uint32_t> kKinds = {{Work::kernel, kKernel},
                                              {Work::memcpy, kMemcpy},
                                              {Work::memcpy_peer, kMemcpyPeer},
                                              {Work::memset, kMemset}};

struct Layout {
  std::size_t size, start, correlation;
};

/// Records by kind as CUDA 13.0 writes them.
const std::map<std::uint32_t, Layout> kLayouts13 = {{kMemcpy, {96, 16, 44}},  {kMemset, {88, 16, 44}},
                                                    {kDriver, {40, 8, 32}},   {kRuntime, {40, 8, 32}},
                                                    {kKernel, {216, 16, 92}}, {kMemcpyPeer, {96, 16, 60}},
                                                    {kExternal, {24, 0, 16}}, {/*MARKER*/ 12, {56, 0, 0}}};

std::size_t size_of(std::uint32_t kind, std::uint32_t version) {
  const auto layout = kLayouts13.find(kind);
  if (layout == kLayouts13.end()) return 0;
  if (version >= 130000) return layout->second.size;
  // CUDA 11.8: the same records before they grew.
  static const std::map<std::uint32_t, std::size_t> older = {{kKernel, 200}, {kMemcpy, 88}};
  const auto old = older.find(kind);
  return old == older.end() ? layout->second.size : old->second;
}

using Requested = void (*)(std::uint8_t**, std::size_t*, std::size_t*);
using Completed = void (*)(void*, std::uint32_t, std::uint8_t*, std::size_t, std::size_t);
using Record = std::vector<std::uint8_t>;

template <typename T>
void put(Record* record, std::size_t offset, T value) {
  std::memcpy(record->data() + offset, &value, sizeof value);
}

thread_local std::map<std::uint32_t, std::vector<std::uint64_t>> external_ids;
thread_local bool in_callback = false;

struct Pending {
  Call call;
  std::uint32_t correlation;
};

class Implementation : public StandIn {
 public:
  void reset() override {
    static_cast<StandInState&>(*this) = {};
    requested_ = nullptr;
    completed_ = nullptr;
    buffer_ = nullptr;
    used_ = dropped_ = 0;
    pending_.clear();
    external_ids.clear();
    clock_ = 1'000'000;
  }

  std::uint32_t call(const Call& call) override {
    const std::uint32_t correlation = next_correlation_++;
    for (const auto& [kind, ids] : external_ids) {
      if (ids.empty() || !enabled.contains(call.driver ? kDriver : kRuntime)) continue;
      Record record = blank(kExternal);
      put(&record, 4, kind);
      put(&record, 8, ids.back());
      put(&record, 16, correlation);
      write(record);
    }
    write_api(call, call.driver, correlation, 10);
    if (call.nested_driver) write_api(call, true, next_correlation_++, 4);
    clock_ += 10;
    const bool recorded = enabled.contains(kKinds.at(call.work)) && !call.loses_kernel;
    if (!call.fails && recorded) pending_.push_back({call, correlation});
    return correlation;
  }

  void run_device(bool reversed) override {
    if (reversed) std::reverse(pending_.begin(), pending_.end());
    for (const Pending& pending : pending_) {
      write_device(pending, clock_, clock_ + pending.call.duration);
      clock_ += pending.call.duration;
    }
    pending_.clear();
  }

  void flush(bool forced) {
    ++flushes;
    if (forced) {
      for (const Pending& pending : pending_) write_device(pending, clock_, 0);
      pending_.clear();
    }
    if (returns_buffers) hand_over();
  }

  void emit(std::uint32_t kind, std::size_t size) override {
    Record record(size);
    put(&record, 0, kind);
    write_always(record);
  }

  void hand_over() override {
    if (!buffer_) return;
    const std::size_t valid = used_ - std::min(cut_bytes, used_);
    cut_bytes = 0;
    on_own_thread([&] { completed_(nullptr, 0, buffer_, size_, valid); });
    buffer_ = nullptr;
  }

  void hand_over_foreign() override {
    static std::uint8_t foreign[64];
    on_own_thread([&] { completed_(nullptr, 0, foreign, sizeof foreign, 0); });
  }

  void register_callbacks(Requested requested, Completed completed) {
    requested_ = requested;
    completed_ = completed;
  }

  std::size_t take_dropped() {
    asked_dropped_in_callback = asked_dropped_in_callback || in_callback;
    return std::exchange(dropped_, 0);
  }

 private:
  template <typename Action>
  void on_own_thread(Action action) {
    std::thread([&] {
      in_callback = true;
      action();
    }).join();
  }

  Record blank(std::uint32_t kind) {
    Record record(size_of(kind, version));
    put(&record, 0, kind);
    return record;
  }

  void write_api(const Call& call, bool driver, std::uint32_t correlation, std::uint64_t duration) {
    Record record = blank(driver ? kDriver : kRuntime);
    const std::uint32_t launch = driver ? 307 : 211;  // cuLaunchKernel, cudaLaunchKernel
    put(&record, 4, call.work == Work::kernel ? launch : 41);
    put(&record, 8, clock_ + (10 - duration) / 2);
    put(&record, 16, clock_ + (10 - duration) / 2 + duration);
    put(&record, 28, static_cast<std::uint32_t>(std::hash<std::thread::id>()(std::this_thread::get_id())));
    put(&record, 32, correlation);
    put(&record, 36, call.fails ? 1u : 0u);
    write(record);
  }

  void write_device(const Pending& pending, std::uint64_t start, std::uint64_t end) {
    const std::uint32_t kind = kKinds.at(pending.call.work);
    Record record = blank(kind);
    put(&record, 16, start);
    put(&record, 24, end);
    put(&record, kLayouts13.at(kind).correlation, pending.correlation);
    write_always(record);
  }

  void write(const Record& record) {
    std::uint32_t kind;
    std::memcpy(&kind, record.data(), sizeof kind);
    if (enabled.contains(kind)) write_always(record);
  }

  void write_always(const Record& record) {
    if (drop_next > 0) {
      --drop_next;
      ++dropped_;
      return;
    }
    if (buffer_ && used_ + record.size() > size_) hand_over();
    if (!buffer_) {
      std::size_t max_records = 1;
      on_own_thread([&] { requested_(&buffer_, &size_, &max_records); });
      ++requests;
      used_ = 0;
    }
    std::memcpy(buffer_ + used_, record.data(), record.size());
    used_ += record.size();
  }

  Requested requested_ = nullptr;
  Completed completed_ = nullptr;
  std::uint8_t* buffer_ = nullptr;
  std::size_t size_ = 0, used_ = 0, dropped_ = 0;
  std::uint32_t next_correlation_ = 1;
  std::uint64_t clock_ = 1'000'000;
  std::vector<Pending> pending_;
};

Implementation& state() {
  static Implementation state;
  return state;
}

struct SubscriberParams {
  std::size_t size;
  const char* name;
  char* old_name;
  std::size_t old_size;
};

int subscribe(void** subscriber) {
  StandIn& cupti = state();
  if (!cupti.holder.empty() || cupti.subscribed) return 39;
  cupti.subscribed = true;
  *subscriber = &cupti;
  return 0;
}

}  // namespace

extern "C" {

StandIn* cupti_stand_in() { return &state(); }

void cupti_stand_in_reset() { state().reset(); }
void cupti_stand_in_launch(std::uint64_t duration) { state().call({.duration = duration}); }
void cupti_stand_in_run_device() { state().run_device(false); }
void cupti_stand_in_drop(std::size_t records) { state().drop_next = records; }
void cupti_stand_in_hold(const char* holder) { state().holder = holder; }

/// Without a driver that of CUDA 13.2 calls itself until the stack is full.
int cuptiGetVersion(std::uint32_t* version) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) std::abort();
  dlclose(driver);
  *version = state().version;
  return 0;
}

int cuptiGetResultString(int result, const char** text) {
  const std::map<int, const char*> texts = {{27, "CUPTI_ERROR_NOT_SUPPORTED"},
                                            {35, "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"}};
  const auto known = texts.find(result);
  if (known == texts.end()) return 1;
  *text = known->second;
  return 0;
}

int cuptiSubscribe(void** subscriber, void*, void*) { return subscribe(subscriber); }

int cuptiSubscribe_v2(void** subscriber, void*, void*, SubscriberParams* params) {
  if (params->size != sizeof(SubscriberParams)) return 1;
  const int result = subscribe(subscriber);
  if (result == 0) state().subscriber_name = params->name;
  if (result != 0) std::strncpy(params->old_name, state().holder.c_str(), params->old_size);
  return result;
}

int cuptiUnsubscribe(void* subscriber) {
  if (subscriber != &state()) return 1;
  state().subscribed = false;
  return 0;
}

int cuptiActivityRegisterCallbacks(Requested requested, Completed completed) {
  state().register_callbacks(requested, completed);
  return 0;
}

int cuptiActivityEnable(std::uint32_t kind) {
  if (state().refused_kinds.contains(kind)) return 35;
  state().enabled.insert(kind);
  return 0;
}

int cuptiActivityDisable(std::uint32_t kind) { return state().enabled.erase(kind) == 1 ? 0 : 1; }

int cuptiActivityFlushAll(std::uint32_t flag) {
  state().flush(flag == 1);
  return 0;
}

int cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid, void** record) {
  std::uint8_t* next = buffer;
  std::uint32_t kind = 0;
  if (*record) {
    std::memcpy(&kind, *record, sizeof kind);
    next = static_cast<std::uint8_t*>(*record) + size_of(kind, state().version);
  }
  const std::size_t left = valid - static_cast<std::size_t>(next - buffer);
  if (left < sizeof kind) return 12;
  std::memcpy(&kind, next, sizeof kind);
  const std::size_t size = size_of(kind, state().version);
  if (size == 0) return 21;
  if (left < size) return 12;
  *record = next;
  return 0;
}

int cuptiActivityGetNumDroppedRecords(void*, std::uint32_t, std::size_t* dropped) {
  *dropped = state().take_dropped();
  return 0;
}

int cuptiActivityPushExternalCorrelationId(std::uint32_t kind, std::uint64_t id) {
  external_ids[kind].push_back(id);
  return 0;
}

int cuptiActivityPopExternalCorrelationId(std::uint32_t kind, std::uint64_t* last) {
  auto& ids = external_ids[kind];
  if (ids.empty()) return 18;
  *last = ids.back();
  ids.pop_back();
  return 0;
}
}
