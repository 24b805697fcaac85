// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/trace.h"

#include <string>

#include "plugin/executor/error.h"

namespace ostinato {

void Trace::begin() {
  records_.clear();
  records_.reserve(planned_.size());
  spans_.clear();
  spans_.reserve(planned_.size());
  computed_.clear();
  done_.assign(planned_.size(), 0);
  last_in_turn_ = -1;
  moments_.begin();
}

void Trace::ran(int index, Action action, int stage, int micro_batch, const Moment& start,
                const Moment& end) {
  begun(index, action, stage, micro_batch);
  ended(index, start, end);
}

void Trace::begun(int index, Action action, int stage, int micro_batch) {
  const Instruction& planned = planned_[index];
  const bool in_turn = is_receive(action) || index > last_in_turn_;
  if (planned.action != action || planned.stage != stage || planned.micro_batch != micro_batch ||
      done_[index] || !in_turn) {
    const Instruction run{.action = action, .stage = stage, .micro_batch = micro_batch};
    throw ExecutionError("rank " + std::to_string(rank_) + " ran " + to_string(run) + " where the plan has " +
                         to_string(planned) + ", instruction " + std::to_string(index) +
                         (done_[index] ? ", which has already run"
                          : in_turn    ? ""
                                       : ", out of turn"));
  }
  done_[index] = 1;
  if (!is_receive(action)) last_in_turn_ = index;
}

void Trace::ended(int index, const Moment& start, const Moment& end) {
  records_.push_back({index, start.host_ns, end.host_ns});
  spans_.emplace_back(start, end);
  if (runs_layers(planned_[index].action)) computed_.push_back(end);
}

int Trace::hold_back(std::chrono::nanoseconds timeout) {
  if (moments_.are_of_host() || computed_.size() < 2) return -1;
  return await(*(computed_.end() - 2), timeout);
}

int Trace::unfinished(std::chrono::nanoseconds timeout) {
  return moments_.are_of_host() ? -1 : await(moments_.now(), timeout);
}

int Trace::await(const Moment& moment, std::chrono::nanoseconds timeout) const {
  return comes_within(timeout, [&] { return moments_.has_come(moment); }) ? -1 : first_unfinished();
}

int Trace::first_unfinished() const {
  int last_send = 0;
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    const int index = records_[i].instruction;
    if (!moments_.has_come(spans_[i].second)) return index;
    if (is_send(planned_[index].action)) last_send = index;
  }
  return last_send;
}

void Trace::finish() {
  if (!moments_.are_of_host()) {
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      records_[i].start_ns = moments_.at(spans_[i].first);
      records_[i].end_ns = moments_.at(spans_[i].second);
    }
  }
  for (std::size_t i = 0; i < done_.size(); ++i) {
    if (done_[i]) continue;
    throw ExecutionError("rank " + std::to_string(rank_) + " ended the step without " +
                         to_string(planned_[i]) + ", instruction " + std::to_string(i) + " of the plan");
  }
}

}  // namespace ostinato
