// SPDX-License-Identifier: Apache-2.0
#include "profiler/operators/operator_recorder.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "profiler/memory/counting_allocator.h"
#include "profiler/operators/flops.h"

namespace ostinato {
namespace {

constexpr int kDepth = 256;              // operators that call each other
constexpr std::size_t kNames = 1 << 16;  // bytes of long names that a thread's buffer holds
constexpr int kLost = -1;                // on the stack: an event that had no room

Nanoseconds now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Written by one thread only. Whoever reads it, once that thread has left its operators, loads `depth`
/// first: that orders the two, however the threads of a pool wait for each other.
struct Buffer {
  int first = 0;                      ///< number of its first event among the recorder's
  std::vector<OperatorEvent> events;  ///< full size from the start
  int used = 0;
  std::vector<char> names;  ///< full size from the start: distinct long ones, each ends with 0
  std::size_t names_used = 0;
  std::array<int, kDepth> stack{};  ///< of open events
  std::atomic<int> depth{0};        ///< may exceed kDepth: those are lost
  std::int64_t dropped = 0;
  std::int64_t unfinished = 0;
};

}  // namespace

struct OperatorRecorder::State {
  std::vector<Buffer> buffers;
  std::atomic<int> claimed{0};
  std::atomic<std::int64_t> dropped{0};  ///< by threads that found no buffer
  std::atomic<int> pass{-1};
  std::atomic<std::uint64_t> range{0};  ///< of the pass, as an id; the operators' are made from it
  RecordOptions options;
  std::uint64_t generation = 0;  ///< of start(); tells a thread that its buffer is another recorder's
};

namespace {

std::atomic<OperatorRecorder::State*> active{nullptr};
std::atomic<std::uint64_t> generations{0};

thread_local struct {
  std::uint64_t generation = 0;
  Buffer* buffer = nullptr;
} mine;

Buffer* buffer_of_this_thread(OperatorRecorder::State& state) {
  if (mine.generation != state.generation) {
    mine.generation = state.generation;
    const int index = state.claimed.fetch_add(1, std::memory_order_relaxed);
    mine.buffer = index < static_cast<int>(state.buffers.size()) ? &state.buffers[index] : nullptr;
  }
  return mine.buffer;
}

/// The buffer's copy of a name, made when it comes for the first time; null: it has no room, and counts as
/// lost.
const char* long_name(const char* name, Buffer& buffer) {
  const std::size_t size = std::strlen(name) + 1;
  char* at = buffer.names.data();
  char* const end = at + buffer.names_used;
  for (; at != end; at += std::strlen(at) + 1) {
    if (std::strcmp(at, name) == 0) return at;
  }
  if (buffer.names_used + size > buffer.names.size()) {
    ++buffer.dropped;
    return nullptr;
  }
  std::memcpy(at, name, size);
  buffer.names_used += size;
  return at;
}

Bytes allocated_by_this_thread() { return thread_allocated_bytes() + device_allocated_bytes(); }

void copy_name(const char* from, OperatorEvent& event, Buffer& buffer) {
  const std::size_t length = strnlen(from, OperatorEvent::kName - 1);
  std::memcpy(event.short_name.data(), from, length);
  event.short_name[length] = 0;
  event.long_name = from[length] == 0 ? nullptr : long_name(from, buffer);
}

cupti::Range range_of(const Pass& pass) {
  const auto kind = pass.phase == "forward"           ? Kind::forward
                    : pass.phase == "backward"        ? Kind::backward
                    : pass.phase == "backward_input"  ? Kind::backward_input
                    : pass.phase == "backward_weight" ? Kind::backward_weight
                                                      : Kind::other;
  return {.operator_id = -1, .layer = pass.layer, .kind = kind, .micro_batch = pass.micro_batch};
}

const cupti::Range kOutside{};

void open_range(const OperatorRecorder::State& state, int number) {
  cupti::Range range = cupti::decode(state.range.load(std::memory_order_relaxed)).value_or(kOutside);
  range.operator_id = number;
  state.options.timer->open(range);
}

/// If a caller's count already includes this call, it gets none itself.
void count_flops(OperatorEvent& event, const OperatorEvent* caller, const at::RecordFunction& function) {
  event.flops = OperatorEvent::kUnknown;
  event.counted = caller != nullptr && caller->counted;
  if (event.counted) return;
  event.flops = flops_of(function.name(), function.inputs()).value_or(OperatorEvent::kUnknown);
  event.counted = event.flops != OperatorEvent::kUnknown;
}

void fill(OperatorEvent& event, Buffer& buffer, const at::RecordFunction& function, int pass) {
  copy_name(function.name(), event, buffer);
  event.sequence = function.seqNr();
  event.thread = function.threadId();
  event.forward_thread = function.forwardThreadId();
  event.backward = function.scope() == at::RecordScope::BACKWARD_FUNCTION;
  event.pass = pass;
  event.end = -1;
  event.children = 0;
  event.children_allocated = 0;
  event.allocated = -allocated_by_this_thread();
}

/// Of `depth` that are open. Null: none, or it had no room.
OperatorEvent* innermost(Buffer& buffer, int depth) {
  if (depth == 0 || depth > kDepth || buffer.stack[depth - 1] == kLost) return nullptr;
  return &buffer.events[buffer.stack[depth - 1]];
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  OperatorRecorder::State* state = active.load(std::memory_order_acquire);
  if (state == nullptr) return nullptr;
  Buffer* buffer = buffer_of_this_thread(*state);
  if (buffer == nullptr) {
    state->dropped.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  const int depth = buffer->depth.load(std::memory_order_relaxed);
  const bool room = buffer->used < static_cast<int>(buffer->events.size()) && depth < kDepth;
  if (!room) ++buffer->dropped;
  const OperatorEvent* caller = innermost(*buffer, depth);
  if (depth < kDepth) buffer->stack[depth] = room ? buffer->used : kLost;
  buffer->depth.store(depth + 1, std::memory_order_relaxed);
  if (room) {
    OperatorEvent& event = buffer->events[buffer->used++];
    fill(event, *buffer, function, state->pass.load(std::memory_order_relaxed));
    event.number = buffer->first + buffer->used - 1;
    if (state->options.flops) count_flops(event, caller, function);
    if (state->options.timer != nullptr) open_range(*state, event.number);
    event.start = now();
  }
  return nullptr;
}

/// Ends the innermost of `depth` that are open.
void end_innermost(Buffer& buffer, int depth, DeviceTimer* timer) {
  OperatorEvent* event = innermost(buffer, depth);
  if (event == nullptr) return;
  event->end = now();
  event->allocated += allocated_by_this_thread();
  if (timer != nullptr) timer->close();
  OperatorEvent* caller = innermost(buffer, depth - 1);
  if (caller == nullptr) return;
  caller->children += event->end - event->start;
  caller->children_allocated += event->allocated;
}

void on_end(const at::RecordFunction&, at::ObserverContext*) {
  OperatorRecorder::State* state = active.load(std::memory_order_acquire);
  if (state == nullptr || mine.generation != state->generation || mine.buffer == nullptr) return;
  Buffer& buffer = *mine.buffer;
  const int depth = buffer.depth.load(std::memory_order_relaxed);
  if (depth == 0) return;  // it started before the recorder did
  end_innermost(buffer, depth, state->options.timer);
  buffer.depth.store(depth - 1, std::memory_order_release);
}

}  // namespace

OperatorRecorder::OperatorRecorder(const RecorderOptions& options) : state_(std::make_unique<State>()) {
  state_->buffers = std::vector<Buffer>(options.threads);
  int first = 0;
  for (Buffer& buffer : state_->buffers) {
    buffer.events.resize(options.events_per_thread);
    buffer.names.resize(kNames);
    buffer.first = first;
    first += options.events_per_thread;
  }
}

OperatorRecorder::~OperatorRecorder() { stop(); }

void OperatorRecorder::start(const RecordOptions& options) {
  state_->generation = ++generations;
  state_->claimed = 0;
  State* none = nullptr;
  if (!active.compare_exchange_strong(none, state_.get(), std::memory_order_acq_rel)) {
    throw std::logic_error("an operator recorder is already running");
  }
  state_->options = options;
  state_->range = cupti::encode(kOutside);
  if (options.timer != nullptr) hook_ = std::make_unique<AllocationHook>();
  handle_ =
      at::addGlobalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                                .needsInputs(options.flops)
                                .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

void OperatorRecorder::stop() {
  if (handle_ == 0) return;
  end_pass();
  at::removeCallback(handle_);
  handle_ = 0;
  hook_.reset();
  active.store(nullptr, std::memory_order_release);
  for (Buffer& buffer : state_->buffers) {
    buffer.unfinished += std::min(buffer.depth.exchange(0, std::memory_order_acquire), kDepth);
  }
}

void OperatorRecorder::clear() {
  for (Buffer& buffer : state_->buffers) {
    buffer.used = 0;
    buffer.names_used = 0;
    buffer.dropped = buffer.unfinished = 0;
  }
  state_->dropped = 0;
  passes_.clear();
}

void OperatorRecorder::begin_pass(int layer, const std::string& phase, int micro_batch) {
  end_pass();
  passes_.push_back({layer, phase, micro_batch});
  const cupti::Range range = range_of(passes_.back());
  state_->range.store(cupti::encode(range), std::memory_order_relaxed);
  state_->pass.store(static_cast<int>(passes_.size()) - 1, std::memory_order_relaxed);
  if (handle_ != 0 && state_->options.timer != nullptr) state_->options.timer->open(range);
  in_pass_ = true;
}

void OperatorRecorder::end_pass() {
  if (!in_pass_) return;
  in_pass_ = false;
  if (handle_ != 0 && state_->options.timer != nullptr) state_->options.timer->close();
  state_->pass.store(-1, std::memory_order_relaxed);
  state_->range.store(cupti::encode(kOutside), std::memory_order_relaxed);
}

std::vector<OperatorEvent> OperatorRecorder::events() const {
  std::vector<OperatorEvent> all;
  for (const Buffer& buffer : state_->buffers) {
    std::copy_if(buffer.events.begin(), buffer.events.begin() + buffer.used, std::back_inserter(all),
                 [](const OperatorEvent& event) { return event.end >= 0; });
  }
  return all;
}

std::int64_t OperatorRecorder::dropped() const {
  std::int64_t total = state_->dropped;
  for (const Buffer& buffer : state_->buffers) total += buffer.dropped;
  return total;
}

std::int64_t OperatorRecorder::unfinished() const {
  std::int64_t total = 0;
  for (const Buffer& buffer : state_->buffers) total += buffer.unfinished;
  return total;
}

}  // namespace ostinato
