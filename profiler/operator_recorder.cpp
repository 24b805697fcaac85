#include "profiler/operator_recorder.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "profiler/counting_allocator.h"

namespace ostinato {
namespace {

constexpr int kDepth = 256;  // operators that call each other
constexpr int kLost = -1;    // on the stack: an event that had no room

Nanoseconds now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Written by one thread only.
struct Buffer {
  std::vector<OperatorEvent> events;  ///< full size from the start
  int used = 0;
  std::array<int, kDepth> stack{};  ///< of open events
  int depth = 0;                    ///< may exceed kDepth: those are lost
  std::int64_t dropped = 0;
  std::int64_t unfinished = 0;
};

}  // namespace

struct OperatorRecorder::State {
  std::vector<Buffer> buffers;
  std::atomic<int> claimed{0};
  std::atomic<std::int64_t> dropped{0};  ///< by threads that found no buffer
  std::atomic<int> pass{-1};
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

void copy_name(const char* from, OperatorEvent& event) {
  const std::size_t length = strnlen(from, OperatorEvent::kName - 1);
  std::memcpy(event.name.data(), from, length);
  event.name[length] = 0;
}

void fill(OperatorEvent& event, const at::RecordFunction& function, int pass) {
  copy_name(function.name(), event);
  event.sequence = function.seqNr();
  event.thread = function.threadId();
  event.forward_thread = function.forwardThreadId();
  event.backward = function.scope() == at::RecordScope::BACKWARD_FUNCTION;
  event.pass = pass;
  event.end = -1;
  event.children = 0;
  event.children_allocated = 0;
  event.allocated = -thread_allocated_bytes();
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  OperatorRecorder::State* state = active.load(std::memory_order_acquire);
  if (state == nullptr) return nullptr;
  Buffer* buffer = buffer_of_this_thread(*state);
  if (buffer == nullptr) {
    state->dropped.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  const bool room = buffer->used < static_cast<int>(buffer->events.size()) && buffer->depth < kDepth;
  if (!room) ++buffer->dropped;
  if (buffer->depth < kDepth) buffer->stack[buffer->depth] = room ? buffer->used : kLost;
  ++buffer->depth;
  if (room) {
    OperatorEvent& event = buffer->events[buffer->used++];
    fill(event, function, state->pass.load(std::memory_order_relaxed));
    event.start = now();
  }
  return nullptr;
}

void on_end(const at::RecordFunction&, at::ObserverContext*) {
  OperatorRecorder::State* state = active.load(std::memory_order_acquire);
  if (state == nullptr || mine.generation != state->generation || mine.buffer == nullptr) return;
  Buffer& buffer = *mine.buffer;
  if (buffer.depth == 0) return;  // it started before the recorder did
  --buffer.depth;
  if (buffer.depth >= kDepth || buffer.stack[buffer.depth] == kLost) return;
  OperatorEvent& event = buffer.events[buffer.stack[buffer.depth]];
  event.end = now();
  event.allocated += thread_allocated_bytes();
  if (buffer.depth == 0 || buffer.stack[buffer.depth - 1] == kLost) return;
  OperatorEvent& caller = buffer.events[buffer.stack[buffer.depth - 1]];
  caller.children += event.end - event.start;
  caller.children_allocated += event.allocated;
}

}  // namespace

OperatorRecorder::OperatorRecorder(const RecorderOptions& options) : state_(std::make_unique<State>()) {
  state_->buffers.resize(options.threads);
  for (Buffer& buffer : state_->buffers) buffer.events.resize(options.events_per_thread);
}

OperatorRecorder::~OperatorRecorder() { stop(); }

void OperatorRecorder::start() {
  state_->generation = ++generations;
  state_->claimed = 0;
  State* none = nullptr;
  if (!active.compare_exchange_strong(none, state_.get(), std::memory_order_acq_rel)) {
    throw std::logic_error("an operator recorder is running already");
  }
  handle_ =
      at::addGlobalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                                .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

void OperatorRecorder::stop() {
  if (handle_ == 0) return;
  at::removeCallback(handle_);
  handle_ = 0;
  active.store(nullptr, std::memory_order_release);
  for (Buffer& buffer : state_->buffers) {
    buffer.unfinished += std::min(buffer.depth, kDepth);
    buffer.depth = 0;
  }
}

void OperatorRecorder::clear() {
  for (Buffer& buffer : state_->buffers) {
    buffer.used = 0;
    buffer.dropped = buffer.unfinished = 0;
  }
  state_->dropped = 0;
  passes_.clear();
}

void OperatorRecorder::begin_pass(int layer, const std::string& phase) {
  passes_.push_back({layer, phase});
  state_->pass.store(static_cast<int>(passes_.size()) - 1, std::memory_order_relaxed);
}

void OperatorRecorder::end_pass() { state_->pass.store(-1, std::memory_order_relaxed); }

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
