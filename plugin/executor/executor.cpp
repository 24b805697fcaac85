// SPDX-License-Identifier: Apache-2.0
// What execute() does with each instruction, in the list's order:
// 1. Before a compute, waits until the device has ended all but the last one (hold_back()).
// 2. Posts receives as far ahead as the itinerary allows. A receive is then only posted: its consumer waits
//    for it.
// 3. A send issues its tensors. A compute takes its inputs, from this rank or from a peer, runs its stage,
//    and keeps the outputs until all that take them have. On a lane it is only begun; who takes its outputs
//    waits for them.
// The trace compares each with the plan as it ends. At the end of the step all sends must be over. After an
// error run() refuses to go on, since the ranks' transfers no longer match.
#include "plugin/executor/executor.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cassert>
#include <map>
#include <set>
#include <tuple>

#include "plugin/executor/error.h"
#include "plugin/lowering/deadlock.h"
#include "profiler/nvtx/nvtx_range.h"
#include "search/files/counted.h"

namespace ostinato {
namespace {

using Clock = std::chrono::steady_clock;

/// Computes of the rank itself behind which a lane's may stand and begin; each may bring a buffer to receive
/// into.
constexpr int kComputesAhead = 2;

bool same_stages(const Program& a, const Program& b) {
  return std::equal(a.stages.begin(), a.stages.end(), b.stages.begin(), b.stages.end(),
                    [](const ProgramStage& x, const ProgramStage& y) {
                      return x.name == y.name && x.devices == y.devices && x.inputs == y.inputs &&
                             x.outputs == y.outputs && x.has_backward == y.has_backward && x.lane == y.lane &&
                             x.holds == y.holds && x.offload == y.offload;
                    });
}

/// What the rank exchanges in a step, whatever its order.
std::map<std::tuple<Action, int, int, int>, int> exchanged(const Program& program, int rank) {
  std::map<std::tuple<Action, int, int, int>, int> count;
  for (const Instruction& i : program.ranks[rank]) ++count[{i.action, i.stage, i.peer, i.peer_stage}];
  return count;
}

Program checked(Program program, int rank) {
  const DeadlockProof proof = prove_deadlock_free(program);
  if (!proof.ok()) throw ExecutionError("the program is refused: " + proof.failure);
  if (rank < 0 || rank >= static_cast<int>(program.ranks.size())) {
    throw ExecutionError("the program has " + counted(program.ranks.size(), "rank") + ", but no rank " +
                         std::to_string(rank));
  }
  return program;
}

std::vector<std::string> range_names(const Program& program, int rank) {
  std::vector<std::string> names;
  for (const Instruction& i : program.ranks[rank]) {
    names.push_back(program.stages[i.stage].name + " " + to_string(i.action) + " " +
                    std::to_string(i.micro_batch));
  }
  return names;
}

}  // namespace

Executor::Executor(Program program, int rank, Channel& channel, ExecutorOptions options)
    : program_(checked(std::move(program), rank)),
      rank_(rank),
      device_(channel.device()),
      ranges_(range_names(program_, rank)),
      traffic_(
          program_, rank, channel, options.timeout, meter_, [this](int index) { waiting(index); },
          options.dynamic_shapes),
      trace_(program_.ranks[rank], rank, channel.device().type()),
      timeout_(options.timeout),
      programs_change_(options.programs_change) {
  for (const Instruction& i : program_.ranks[rank_]) {  // nothing waits for a lane that is only held
    if (!is_compute(i.action)) continue;
    if (const std::string& lane = lane_of(program_, i); !lane.empty())
      lanes_.try_emplace(lane, channel.device());
  }
  channel.open(traffic_.messages(programs_change_), options.setup_timeout);
}

Executor::~Executor() = default;

void Executor::set_stage(int stage, StageModule& module) {
  if (stage < 0 || stage >= static_cast<int>(program_.stages.size()) || !program_.stages[stage].on(rank_)) {
    throw ExecutionError("stage " + std::to_string(stage) + " is not on rank " + std::to_string(rank_));
  }
  stages_[stage] = std::make_unique<StageRun>(program_.stages[stage], program_.micro_batches, module);
}

void Executor::set_program(Program program) {
  assert(programs_change_);
  program = checked(std::move(program), rank_);
  if (program.micro_batches != program_.micro_batches || program.ranks.size() != program_.ranks.size() ||
      !same_stages(program, program_) || exchanged(program, rank_) != exchanged(program_, rank_))
    throw ExecutionError(
        "the next program must have the stages, transfers and micro-batches of the executor's first program");
  const std::lock_guard lock(changes_);
  // Element by element: other objects refer to the rank's list.
  for (std::size_t r = 0; r < program.ranks.size(); ++r) program_.ranks[r].swap(program.ranks[r]);
  ranges_ = range_names(program_, rank_);
  traffic_.renew();
}

void Executor::run(const std::string& name) {
  if (!failed_.empty())
    throw ExecutionError("an earlier step failed (" + failed_ +
                         "), and the transfers are out of step: make the pipeline again on every rank");
  for (std::size_t s = 0; s < program_.stages.size(); ++s) {
    if (program_.stages[s].on(rank_) && !stages_.contains(static_cast<int>(s))) {
      throw ExecutionError("stage " + std::to_string(s) + " ('" + program_.stages[s].name +
                           "') has no module");
    }
  }
  {
    const std::lock_guard lock(changes_);
    name_ = name;
  }
  // What has no device beside it (the events of the trace, a backward) is of the thread's current one, which
  // need not be this rank's.
  const c10::OptionalDeviceGuard here(device_.is_cpu() ? std::nullopt : std::make_optional(device_));
  try {
    step();
  } catch (const TimeoutError& error) {
    failed_ = to_string(position());
    throw TimeoutError(error.what() + ("; " + failed_));
  } catch (...) {
    failed_ = to_string(position());
    throw;
  }
}

void Executor::step() {
  trace_.begin();
  const int size = static_cast<int>(program_.ranks[rank_].size());
  begun_.assign(size, 0);
  for (int index = 0; index < size; ++index) {
    at_ = index;
    execute(index);
  }
  for (auto& [name, beside] : lanes_) end_until(-1, beside);
  traffic_.finish();
  // On an accelerator the step has only been issued so far, and a transfer hangs there if its peer never
  // comes.
  expect_ended(trace_.unfinished(timeout_));
  trace_.finish();
  at_ = -1;
  ++steps_;
}

/// `late`: what the device has not ended in time; -1: nothing.
void Executor::expect_ended(int late) {
  if (late < 0) return;
  at_ = late;
  throw TimeoutError(traffic_.late(late));
}

void Executor::execute(int index) {
  const Action action = program_.ranks[rank_][index].action;
  if (runs_layers(action)) {
    expect_ended(trace_.hold_back(timeout_));
    traffic_.next_compute();
  }
  traffic_.post_before(traffic_.itinerary().post_until[index]);
  if (is_receive(action)) return traffic_.post(index);
  const NvtxRange range(ranges_[index].c_str());
  return is_send(action) ? send(index) : compute(index);
}

void Executor::compute(int index) {
  const Instruction& i = program_.ranks[rank_][index];
  if (!lane_of(program_, i).empty()) {
    if (!begun_[index]) begin_beside(index, true);
    return trace_.begun(index, i.action, i.stage, i.micro_batch);
  }
  if (i.action == Action::release) {
    const Moment start = trace_.now();
    end_copy(i, Action::offload);
    return trace_.ran(index, i.action, i.stage, i.micro_batch, start, trace_.now());
  }
  Compute compute{.index = index};
  take(compute);
  begin_ahead(index);
  end_what_occupies(i);
  if (i.action == Action::backward || i.action == Action::backward_input) end_copy(i, Action::load);
  trace_.begun(index, i.action, i.stage, i.micro_batch);
  run_stage(compute);
  end(compute);
}

/// What lanes can begin before the rank itself computes again: its thread looks at nothing while it computes.
/// Where a message comes later than planned, what waits for it stands behind more than that compute.
void Executor::begin_ahead(int index) {
  if (lanes_.empty() || !device_.is_cpu()) return;
  const auto& list = program_.ranks[rank_];
  int passed = 0;
  std::set<std::string> held;  // a lane keeps its order
  const auto hold = [&](const std::vector<std::string>& lanes) { held.insert(lanes.begin(), lanes.end()); };
  hold(lanes_of(program_, list[index]));
  for (int next = index + 1; next < static_cast<int>(list.size()); ++next) {
    if (!is_compute(list[next].action) || begun_[next]) continue;
    const std::vector<std::string> lanes = lanes_of(program_, list[next]);
    const bool computes = lanes.front().empty();
    if (computes && ++passed > kComputesAhead) return;
    const bool waits = std::ranges::any_of(lanes, [&](const auto& lane) { return held.contains(lane); });
    if (computes || waits || !begin_beside(next, false)) hold(lanes);
  }
}

/// The last that has been begun, and not ended, which occupies one of the lanes; null: none.
const Executor::Compute* Executor::last_on(const Beside& beside,
                                           const std::vector<std::string>& lanes) const {
  for (auto one = beside.computes.rbegin(); one != beside.computes.rend(); ++one) {
    const std::vector<std::string> its = lanes_of(program_, program_.ranks[rank_][(*one)->index]);
    if (std::ranges::find_first_of(its, lanes) != its.end()) return one->get();
  }
  return nullptr;
}

/// Before the rank computes what holds lanes, too.
void Executor::end_what_occupies(const Instruction& i) {
  if (program_.stages[i.stage].holds.empty()) return;
  const std::vector<std::string> lanes = lanes_of(program_, i);
  for (auto& [name, beside] : lanes_)
    if (const Compute* last = last_on(beside, lanes)) end_until(last->index, beside);
}

/// The copy, out or back, of what the stage of `i` keeps, if it is still at work.
void Executor::end_copy(const Instruction& i, Action copy) {
  const std::string& lane = program_.stages[i.stage].offload;
  if (lane.empty()) return;
  Beside& beside = lanes_.at(lane);
  for (const auto& one : beside.computes) {
    const Instruction& its = program_.ranks[rank_][one->index];
    if (its.action == copy && its.stage == i.stage && its.micro_batch == i.micro_batch)
      return end_until(one->index, beside);
  }
}

/// On a lane: by its thread.
void Executor::run_stage(Compute& compute) {
  const Instruction& i = program_.ranks[rank_][compute.index];
  StageRun& run = *stages_.at(i.stage);
  for (Arriving& one : compute.arriving) {
    one.asked = trace_.now();
    traffic_.await(one.message, one.receive);
    one.there = trace_.now();
    compute.messages[one.place] = Message::copy_of(one.message.buffers);
  }
  compute.start = trace_.now();
  if (i.action == Action::forward) {
    compute.made = {run.forward(i.micro_batch, std::move(compute.messages))};
    compute.handed = HandedOn(compute.made[0]);
  } else if (i.action == Action::backward) {
    compute.made = run.backward(i.micro_batch, std::move(compute.messages));
  } else if (i.action == Action::backward_input) {
    compute.made = run.backward_input(i.micro_batch, std::move(compute.messages));
  } else if (i.action == Action::offload) {
    run.offload(i.micro_batch);
  } else if (i.action == Action::load) {
    run.load(i.micro_batch);
  } else {
    run.backward_weight(i.micro_batch);
  }
  compute.end = trace_.now();
}

/// The rank's thread would find what the lane made only after its compute.
void Executor::send_from_lane(Compute& compute) {
  const auto& list = program_.ranks[rank_];
  const ProgramStage& stage = program_.stages[list[compute.index].stage];
  for (const int index : traffic_.itinerary().sends[compute.index]) {
    const bool is_forward = list[index].action == Action::send_forward;
    const auto to = std::find(stage.inputs.begin(), stage.inputs.end(), list[index].peer_stage);
    const Moment start = trace_.now();
    if (traffic_.send_early(index, compute.made[is_forward ? 0 : to - stage.inputs.begin()]))
      compute.sent.emplace(index, Span{start, trace_.now()});
  }
}

/// False where it is not at its place in the list, and would have to wait for more than messages.
bool Executor::begin_beside(int index, bool at_its_place) {
  const Instruction& i = program_.ranks[rank_][index];
  if (!at_its_place && !may_begin(i, index)) return false;
  begun_[index] = 1;
  auto compute = std::make_unique<Compute>(Compute{.index = index});
  take(*compute);
  hand_on(*compute, true);
  std::vector<at::Tensor> inputs;
  for (const Message& message : compute->messages)
    inputs.insert(inputs.end(), message.tensors.begin(), message.tensors.end());
  const std::vector<std::string> lanes = lanes_of(program_, i);
  std::vector<LaneQueue::Before> before;  // of other queues, where one of the two holds more than its lane
  for (const auto& [name, other] : lanes_) {
    if (name == lanes.front()) continue;
    if (const Compute* last = last_on(other, lanes))
      before.push_back({last->ended, device_.is_cpu() ? nullptr : trace_.event(last->end)});
  }
  Beside& beside = lanes_.at(lanes.front());
  const auto work = [this, here = compute.get()] {
    run_stage(*here);
    if (device_.is_cpu()) send_from_lane(*here);
  };
  compute->ended = beside.queue.run(work, inputs, std::move(before));
  beside.computes.push_back(std::move(compute));
  return true;
}

/// Whether what it takes of this rank is there, and receives of the rest can be posted. A copy to the host,
/// or back, begins at its place: what it copies, or the memory that it takes, is there from then on.
bool Executor::may_begin(const Instruction& i, int index) {
  if (is_offloading(i.action)) return false;
  const HandOver& here = handed(i.action);
  const std::vector<int>& needs = traffic_.itinerary().needs[index];
  const std::vector<int>& others = feeding(i);
  for (std::size_t k = 0; k < others.size(); ++k) {
    if (needs[k] >= 0) {
      if (!traffic_.is_posted(needs[k])) return false;
      continue;
    }
    const auto found = here.find({others[k], i.stage, i.micro_batch});
    if (found == here.end() || found->second.pending >= 0) return false;
  }
  return true;
}

/// Stages that hand to a compute what it takes.
const std::vector<int>& Executor::feeding(const Instruction& i) const {
  static const std::vector<int> none;
  const ProgramStage& stage = program_.stages[i.stage];
  if (!passes_tensors(i.action)) return none;
  return i.action == Action::forward ? stage.inputs : stage.outputs;
}

/// On a lane of a CPU messages are waited for there.
void Executor::take(Compute& compute) {
  const Instruction& i = program_.ranks[rank_][compute.index];
  const bool waits_there = device_.is_cpu() && !lane_of(program_, i).empty();
  const std::vector<int>& needs = traffic_.itinerary().needs[compute.index];
  const std::vector<int>& others = feeding(i);
  for (std::size_t k = 0; k < others.size(); ++k) {
    if (needs[k] < 0) {
      compute.messages.push_back(take_here(i, others[k]));
    } else if (waits_there) {
      compute.messages.emplace_back();
      compute.arriving.push_back({.receive = needs[k], .place = k, .message = traffic_.expect(needs[k])});
    } else {
      const NvtxRange range(ranges_[needs[k]].c_str());
      const Moment start = trace_.now();
      compute.messages.push_back(Message::from_peer(traffic_.wait(needs[k])));
      received(needs[k], i, start, trace_.now());
    }
  }
}

Message Executor::take_here(const Instruction& i, int other) {
  Kept kept = hand_over(handed(i.action), {other, i.stage, i.micro_batch});
  if (i.action == Action::forward) {
    traffic_.learn(other, i.stage, i.micro_batch, kept.tensors);
  } else {  // a peer may take it, too
    for (at::Tensor& tensor : kept.tensors)
      if (tensor.defined()) tensor = kept.takers > 0 ? tensor.clone() : unshared(std::move(tensor));
  }
  return Message::from_here(std::move(kept.tensors));
}

/// The trace compares the receive with the compute that takes what it brings.
void Executor::received(int receive, const Instruction& by, const Moment& asked, const Moment& there) {
  const Action action = by.action == Action::forward ? Action::receive_forward : Action::receive_backward;
  trace_.ran(receive, action, by.stage, by.micro_batch, asked, there);
}

/// To whom it is due, once for each that takes it; `pending`: when it will be there.
void Executor::hand_on(const Compute& compute, bool pending) {
  const Instruction& i = program_.ranks[rank_][compute.index];
  if (!passes_tensors(i.action)) return;
  const ProgramStage& stage = program_.stages[i.stage];
  const bool is_forward = i.action == Action::forward;
  const std::vector<int>& others = is_forward ? stage.outputs : stage.inputs;
  const std::vector<int>& takers = traffic_.itinerary().takers[compute.index];
  for (std::size_t k = 0; k < others.size(); ++k) {
    Kept kept{.takers = takers[k], .made = compute.end, .pending = pending ? compute.index : -1};
    if (!pending) {
      kept.tensors = compute.made[is_forward ? 0 : k];
      kept.handed = compute.handed;
    }
    if (!pending && is_forward) traffic_.learn(i.stage, others[k], i.micro_batch, kept.tensors);
    keep(handed(i.action), {i.stage, others[k], i.micro_batch}, kept);
  }
}

void Executor::end(Compute& compute) {
  const Instruction& i = program_.ranks[rank_][compute.index];
  for (const Arriving& one : compute.arriving) {
    traffic_.arrived(one.receive);
    received(one.receive, i, one.asked, one.there);
  }
  trace_.ended(compute.index, compute.start, compute.end);
  sent_.merge(compute.sent);
  hand_on(compute, false);
}

/// Waits for what a lane has begun up to instruction `last`; -1: for all of it.
void Executor::end_until(int last, Beside& beside) {
  while (!beside.computes.empty() && (last < 0 || beside.computes.front()->index <= last)) {
    Compute& first = *beside.computes.front();
    waiting(first.index);
    const auto outputs = [&] {
      std::vector<at::Tensor> all;
      for (const auto& tensors : first.made) all.insert(all.end(), tensors.begin(), tensors.end());
      return all;
    };
    beside.queue.wait(first.ended, outputs, trace_.event(first.end));
    waiting(-1);
    end(first);
    beside.computes.pop_front();
  }
}

void Executor::keep(HandOver& here, const Handed& key, const Kept& kept) {
  if (kept.takers > 0) here[key] = kept;
}

Executor::Kept Executor::hand_over(HandOver& here, const Handed& key) {
  const auto found = here.find(key);
  assert(found != here.end());
  if (const int pending = found->second.pending; pending >= 0)  // ending it fills in the tensors
    end_until(pending, lanes_.at(program_.stages[std::get<0>(key)].lane));
  found->second.handed.expect_unchanged(program_.stages[std::get<0>(key)]);
  if (--found->second.takers > 0) return found->second;
  Kept kept = std::move(found->second);
  here.erase(found);
  return kept;
}

void Executor::send(int index) {
  const Instruction& i = program_.ranks[rank_][index];
  HandOver& here = i.action == Action::send_forward ? activations_ : gradients_;
  const Kept kept = hand_over(here, {i.stage, i.peer_stage, i.micro_batch});
  auto sent = sent_.extract(index);
  if (!sent) {
    const Moment start = trace_.now();
    traffic_.send(index, kept.tensors, trace_.event(kept.made));
    return trace_.ran(index, i.action, i.stage, i.micro_batch, start, trace_.now());
  }
  trace_.ran(index, i.action, i.stage, i.micro_batch, sent.mapped().start, sent.mapped().end);
}

void Executor::waiting(int index) {
  waits_since_ = Clock::now().time_since_epoch().count();
  waits_for_ = index;
}

std::vector<int> Executor::unsplit_stages() const {
  std::vector<int> stages;
  for (const auto& [stage, run] : stages_) {
    if (run->ran_whole()) stages.push_back(stage);
  }
  return stages;
}

std::string Executor::with_whom(const Instruction& i) const {
  const ProgramStage& stage = program_.stages[i.stage];
  if (!is_compute(i.action) || !stage.sharded()) return "";
  std::string text = ", which ranks";
  for (std::size_t k = 0; k < stage.devices.size(); ++k)
    text += (k ? ", " : " ") + std::to_string(stage.devices[k]);
  return text + " run together";
}

std::string to_string(const Position& at) {
  if (at.waits_for.empty()) return at.where;
  return at.where + ", waiting " + std::to_string(at.ms) + " ms for " + at.waits_for;
}

Position Executor::position() const {
  const std::lock_guard lock(changes_);
  const auto& list = program_.ranks[rank_];
  std::string text = "rank " + std::to_string(rank_) + " is in " +
                     (name_.empty() ? "step " + std::to_string(steps_ + 1) : name_);
  const int at = at_;
  if (at < 0) return {text + ", between steps"};
  text += " at instruction " + std::to_string(at) + " of " + std::to_string(list.size()) + " (" +
          to_string(list[at]) + ")" + with_whom(list[at]);
  const int waits_for = waits_for_;
  if (waits_for < 0) return {text};
  const auto since = Clock::now().time_since_epoch().count() - waits_since_;
  const std::string what = to_string(list[waits_for]);
  const bool lane = is_compute(list[waits_for].action);
  return {text,
          lane ? what + " on lane " + lane_of(program_, list[waits_for])
               : what + " (" + traffic_.partner(waits_for) + ")",
          since / 1'000'000};
}

}  // namespace ostinato
