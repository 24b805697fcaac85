#include "plugin/executor/trace.h"

#include <string>

#include "plugin/executor/error.h"

namespace ostinato {

void Trace::begin() {
  records_.clear();
  records_.reserve(planned_.size());
  done_.assign(planned_.size(), 0);
  last_in_turn_ = -1;
  begin_ = Clock::now();
}

void Trace::ran(int index, Action action, int stage, int micro_batch, Clock::time_point start,
                Clock::time_point end) {
  const Instruction& planned = planned_[index];
  const bool in_turn = is_receive(action) || index > last_in_turn_;
  if (planned.action != action || planned.stage != stage || planned.micro_batch != micro_batch ||
      done_[index] || !in_turn) {
    const Instruction run{.action = action, .stage = stage, .micro_batch = micro_batch};
    throw ExecutionError("rank " + std::to_string(rank_) + " ran " + to_string(run) + " where the plan has " +
                         to_string(planned) + ", instruction " + std::to_string(index) +
                         (done_[index] ? ", which ran already"
                          : in_turn    ? ""
                                       : ", out of turn"));
  }
  done_[index] = 1;
  if (!is_receive(action)) last_in_turn_ = index;
  records_.push_back({index, (start - begin_).count(), (end - begin_).count()});
}

void Trace::finish() const {
  for (std::size_t i = 0; i < done_.size(); ++i) {
    if (done_[i]) continue;
    throw ExecutionError("rank " + std::to_string(rank_) + " ended the step without " +
                         to_string(planned_[i]) + ", instruction " + std::to_string(i) + " of the plan");
  }
}

}  // namespace ostinato
