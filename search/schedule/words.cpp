// SPDX-License-Identifier: Apache-2.0
#include "search/schedule/words.h"

#include <algorithm>
#include <iterator>

namespace ostinato {
namespace {

bool contains(const std::vector<int>& steps, int step) {
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

}  // namespace

Words::Words(const Instance& in, int micro_batches, const std::vector<int>& sequence, Objective objective)
    : in_(&in),
      n_(micro_batches),
      blocks_(in.blocks()),
      objective_(objective),
      start_(groups_of(objective, in, micro_batches), 0) {
  for (int b = 0; b < blocks_; ++b) {
    first_link_.push_back(links_);
    links_ += in.devices_of(b).size();
  }
  const std::size_t steps = sequence.size();
  const std::size_t links = links_ * n_;
  previous_.assign(links, kNone);
  next_.assign(links, kNone);
  before_.assign(links, 0);
  place_.assign(steps, 0);
  head_.assign(steps, 0);
  tail_.assign(steps, 0);
  moves_.assign(steps, 0);
  std::vector<int> count(blocks_, 0);
  std::vector<int> last(in.devices(), kNone);
  for (const int b : sequence) {
    const int step = count[b]++ * blocks_ + b;
    place_[step] = static_cast<int>(order_.size());
    order_.push_back(step);
    for (std::size_t k = 0; k < in.devices_of(b).size(); ++k) {
      int& end = last[in.devices_of(b)[k]];
      previous_[link(step, k)] = end;
      if (end != kNone) next_[link_on(end, in.devices_of(b)[k])] = step;
      end = step;
    }
  }
  for (int d = 0; d < in.devices(); ++d) {
    int first = last[d];
    while (first != kNone && previous_[link_on(first, d)] != kNone) first = previous_[link_on(first, d)];
    hold(d, first, kNone);
  }
  measure();
}

std::vector<int> Words::sequence() const {
  // By start, so that micro-batches are numbered as their starts are; `order_` breaks ties.
  std::vector<int> steps = order_;
  std::stable_sort(steps.begin(), steps.end(), [&](int a, int b) { return head_[a] < head_[b]; });
  for (int& step : steps) step = block(step);
  return steps;
}

std::size_t Words::link_on(int step, int device) const {
  const auto devices = in_->devices_of(block(step));
  return link(step, static_cast<std::size_t>(std::lower_bound(devices.begin(), devices.end(), device) -
                                             devices.begin()));
}

bool Words::is_on(int step, int device) const {
  const auto devices = in_->devices_of(block(step));
  return std::binary_search(devices.begin(), devices.end(), device);
}

std::vector<ScheduledBlock> Words::schedule() const {
  std::vector<ScheduledBlock> schedule;
  for (const int step : order_) schedule.push_back({block(step), step / blocks_, head_[step]});
  return schedule;
}

Nanoseconds Words::release(int step) const {
  if (!several()) return 0;
  if (objective_ == Objective::latency) return start_[step / blocks_];
  Nanoseconds latest = 0;
  for (const int d : in_->devices_of(block(step))) latest = std::max(latest, start_[d]);
  return latest;
}

Nanoseconds Words::due(int step) const {
  if (!several()) return 0;
  if (objective_ == Objective::latency) return -start_[step / blocks_];
  Nanoseconds earliest = std::numeric_limits<Nanoseconds>::max();
  for (const int d : in_->devices_of(block(step))) earliest = std::min(earliest, start_[d]);
  return -earliest;
}

bool Words::in_group(int step, int group) const {
  return objective_ == Objective::latency ? step / blocks_ == group : is_on(step, group);
}

/// With `start_` as the least heads; kNoPath where no path leads to a step.
void Words::find_heads() {
  for (const int step : order_) {
    const int b = block(step);
    const int base = step - b;
    Nanoseconds head = head_[step];
    for (const Edge& e : in_->inputs(b)) head = std::max(head, end(base + e.block) + e.transfer);
    for (std::size_t k = 0; k < in_->devices_of(b).size(); ++k) {
      const int previous = previous_[link(step, k)];
      if (previous != kNone) head = std::max(head, end(previous));
    }
    head_[step] = head;
  }
}

/// The longest paths from the steps of one group to the ends of all.
void Words::add_paths_from(int group, std::vector<Nanoseconds>& longest) {
  for (const int step : order_) head_[step] = in_group(step, group) ? 0 : kNoPath;
  find_heads();
  const auto row = longest.begin() + static_cast<std::ptrdiff_t>(group * start_.size());
  const auto take = [&](int step, int to) {
    if (head_[step] >= 0) row[to] = std::max(row[to], end(step));
  };
  for (const int step : order_) {
    if (objective_ == Objective::latency) {
      take(step, step / blocks_);
    } else {
      for (const int d : in_->devices_of(block(step))) take(step, d);
    }
  }
}

void Words::start_groups() {
  if (!several()) return;
  std::vector<Nanoseconds> longest(start_.size() * start_.size(), kNoPath);
  for (std::size_t group = 0; group < start_.size(); ++group)
    add_paths_from(static_cast<int>(group), longest);
  start_ = least_extent(longest, static_cast<int>(start_.size())).start;
}

void Words::measure() {
  start_groups();
  for (const int step : order_) head_[step] = release(step);
  find_heads();
  value_ = 0;
  for (auto s = order_.rbegin(); s != order_.rend(); ++s) {
    const int b = block(*s);
    const int base = *s - b;
    Nanoseconds tail = due(*s);
    value_ = std::max(value_, end(*s) + tail);
    for (const Edge& e : in_->followers(b)) tail = std::max(tail, e.transfer + after(base + e.block));
    for (std::size_t k = 0; k < in_->devices_of(b).size(); ++k)
      tail = std::max(tail, after(next_[link(*s, k)]));
    tail_[*s] = tail;
  }
}

/// Memory in use before each step of the word from `from` to `to` (kNone: to its end).
void Words::hold(int device, int from, int to) {
  for (int step = from; step != kNone; step = next_[link_on(step, device)]) {
    const int previous = previous_[link_on(step, device)];
    before_[link_on(step, device)] =
        previous == kNone ? 0 : before_[link_on(previous, device)] + in_->memory(block(previous));
    if (step == to) return;
  }
}

int Words::critical_before(int step, std::uint64_t choice, int& device) const {
  const int b = block(step);
  const Nanoseconds head = head_[step];
  int chosen = kNone;
  std::uint64_t seen = 0;
  // Each of several is as likely: the i-th replaces the choice with probability 1 / i.
  const auto take = [&](int candidate, int on) {
    ++seen;
    choice = choice * 6364136223846793005ULL + 1442695040888963407ULL;  // Knuth's MMIX generator
    if (seen > 1 && (choice >> 33) % seen != 0) return;
    chosen = candidate;
    device = on;
  };
  for (std::size_t k = 0; k < in_->devices_of(b).size(); ++k) {
    const int previous = previous_[link(step, k)];
    if (previous != kNone && previous != chosen && end(previous) == head)
      take(previous, in_->devices_of(b)[k]);
  }
  for (const Edge& e : in_->inputs(b)) {
    const int input = step - b + e.block;
    if (input != chosen && end(input) + e.transfer == head) take(input, kNone);
  }
  return chosen;
}

std::vector<Words::Run> Words::critical_runs(std::uint64_t choice) const {
  int step = kNone;
  for (const int s : order_) {
    if (end(s) + due(s) == value_ && (step == kNone || (choice & 1) != 0)) step = s;
  }
  std::vector<Run> runs;
  int on = kNone;  // device of the run that is open
  while (head_[step] > release(step)) {
    int device = kNone;
    choice = choice * 6364136223846793005ULL + 1442695040888963407ULL;
    const int before = critical_before(step, choice, device);
    if (device != kNone && device != on) runs.push_back({device, {step}});
    if (device != kNone) runs.back().steps.push_back(before);
    on = device;
    step = before;
  }
  for (Run& run : runs) std::reverse(run.steps.begin(), run.steps.end());
  return runs;
}

std::vector<int> Words::passed(const Move& move) const {
  std::vector<int> steps;
  for (int s = move.first; s != move.last; s = next_[link_on(s, move.device)]) steps.push_back(s);
  steps.push_back(move.last);
  steps.erase(move.right ? steps.begin() : steps.end() - 1);
  const int mover = this->mover(move);
  if (in_->devices_of(block(mover)).size() == 1) return steps;
  // On its other devices it passes what stands between it and these.
  for (std::size_t before = 0; before != steps.size();) {
    before = steps.size();
    for (const int d : in_->devices_of(block(mover))) {
      std::size_t left = 0;
      for (const int s : steps) left += is_on(s, d);
      for (int s = mover; left > 0;) {
        s = (move.right ? next_ : previous_)[link_on(s, d)];
        contains(steps, s) ? static_cast<void>(--left) : steps.push_back(s);
      }
    }
  }
  std::sort(steps.begin(), steps.end(), [&](int a, int b) { return place_[a] < place_[b]; });
  return steps;
}

bool Words::holds(int step, Bytes before, int device) const {
  const Bytes needed = std::max<Bytes>(0, in_->memory(block(step))) + in_->workspace(block(step));
  return needed == 0 || before + needed <= in_->room(device);
}

bool Words::fits(const Move& move) const {
  const std::vector<int> steps = passed(move);
  const int mover = this->mover(move);
  for (const int s : steps) {
    if (block(s) == block(mover)) return false;
    const int from = move.right ? mover : s;
    const int to = move.right ? s : mover;
    for (const Edge& e : in_->inputs(block(to))) {
      if (to - block(to) + e.block == from) return false;
    }
  }
  for (const int d : in_->devices_of(block(mover))) {
    if (!in_->limited(d)) continue;
    const Bytes change = move.right ? -in_->memory(block(mover)) : in_->memory(block(mover));
    Bytes before = before_[link_on(mover, d)];
    bool first = true;
    for (const int s : steps) {
      if (!is_on(s, d)) continue;
      const Bytes now = before_[link_on(s, d)];
      if (!move.right && first) before = now;
      first = false;
      if (!holds(s, now + change, d)) return false;
      if (move.right) before = now + change + in_->memory(block(s));
    }
    if (!holds(mover, before, d)) return false;
  }
  return true;
}

Nanoseconds Words::head_without(int step, int device, int mover, const std::vector<int>& steps) const {
  const int b = block(step);
  Nanoseconds head = release(step);
  for (const Edge& e : in_->inputs(b)) head = std::max(head, end(step - b + e.block) + e.transfer);
  for (std::size_t k = 0; k < in_->devices_of(b).size(); ++k) {
    const int previous = previous_[link(step, k)];
    if (in_->devices_of(b)[k] == device || previous == kNone || previous == mover ||
        contains(steps, previous))
      continue;
    head = std::max(head, end(previous));
  }
  return head;
}

Nanoseconds Words::tail_without(int step, int device, int mover, const std::vector<int>& steps) const {
  const int b = block(step);
  Nanoseconds tail = due(step);
  for (const Edge& e : in_->followers(b)) tail = std::max(tail, e.transfer + after(step - b + e.block));
  for (std::size_t k = 0; k < in_->devices_of(b).size(); ++k) {
    const int next = next_[link(step, k)];
    if (in_->devices_of(b)[k] == device || next == kNone || next == mover || contains(steps, next)) continue;
    tail = std::max(tail, after(next));
  }
  return tail;
}

Nanoseconds Words::estimate(const Move& move) {
  const std::vector<int> steps = passed(move);
  const int mover = this->mover(move);
  const int front = previous_[link_on(move.first, move.device)];
  const int back = next_[link_on(move.last, move.device)];
  std::vector<int> word;
  std::copy_if(steps.begin(), steps.end(), std::back_inserter(word),
               [&](int s) { return is_on(s, move.device); });
  word.insert(move.right ? word.end() : word.begin(), mover);
  heads_.clear();
  Nanoseconds free = front == kNone ? 0 : end(front);
  for (const int s : word) {
    heads_.push_back(std::max(free, head_without(s, move.device, mover, steps)));
    free = heads_.back() + in_->time(block(s));
  }
  Nanoseconds longest = 0;
  Nanoseconds rest = after(back);
  for (std::size_t i = word.size(); i-- > 0;) {
    const int s = word[i];
    const Nanoseconds tail = std::max(rest, tail_without(s, move.device, mover, steps));
    rest = tail + in_->time(block(s));
    longest = std::max(longest, heads_[i] + rest);
  }
  return longest;
}

/// True if an arc that the move does not turn round leads from a step that goes along to `step` (right), or
/// the other way (left).
bool Words::goes_along(const Move& move, const std::vector<int>& steps, int step) const {
  const int b = block(step);
  for (const Edge& e : move.right ? in_->inputs(b) : in_->followers(b)) {
    if (moves_[step - b + e.block]) return true;
  }
  const std::vector<int>& links = move.right ? previous_ : next_;
  for (std::size_t k = 0; k < in_->devices_of(b).size(); ++k) {
    const int other = links[link(step, k)];
    if (other == kNone || !moves_[other]) continue;
    if (other != mover(move) || !contains(steps, step)) return true;
  }
  return false;
}

/// The first and the last of `steps` on `device`; kNone if none is.
std::pair<int, int> Words::ends_on(const std::vector<int>& steps, int device) const {
  std::pair<int, int> ends{kNone, kNone};
  for (const int s : steps) {
    if (!is_on(s, device)) continue;
    if (ends.first == kNone) ends.first = s;
    ends.second = s;
  }
  return ends;
}

/// Puts the mover behind (before) what it passes in the linear order, with all that must follow (precede) it.
bool Words::reorder(const Move& move, const std::vector<int>& steps) {
  const int mover = this->mover(move);
  const int from = place_[move.right ? mover : steps.front()];
  const int to = place_[move.right ? steps.back() : mover];
  // On every device the mover stands right behind the last (before the first) step that it passes there.
  std::vector<int> neighbours;
  for (const int d : in_->devices_of(block(mover))) {
    const auto [first, last] = ends_on(steps, d);
    if (first != kNone)
      neighbours.push_back(move.right ? next_[link_on(last, d)] : previous_[link_on(first, d)]);
  }
  stay_.clear();
  go_.clear();
  bool possible = true;
  for (int i = from; i <= to && possible; ++i) {
    const int s = order_[move.right ? i : to - (i - from)];
    const bool along = s == mover || contains(neighbours, s) || goes_along(move, steps, s);
    possible = s == mover || !along || !contains(steps, s);
    moves_[s] = along;
    (along ? go_ : stay_).push_back(s);
  }
  for (const int s : go_) moves_[s] = 0;
  if (!possible) return false;
  stay_.insert(stay_.end(), go_.begin(), go_.end());
  if (!move.right) std::reverse(stay_.begin(), stay_.end());
  for (int i = from; i <= to; ++i) {
    order_[i] = stay_[i - from];
    place_[order_[i]] = i;
  }
  return true;
}

/// Takes the mover out of the word of `device` and puts it back behind (before) the last (first) step that
/// it passes there.
void Words::relink(const Move& move, const std::vector<int>& steps, int device) {
  const int mover = this->mover(move);
  const auto [first, last] = ends_on(steps, device);
  if (first == kNone) return;
  const auto join = [&](int a, int b) {
    if (a != kNone) next_[link_on(a, device)] = b;
    if (b != kNone) previous_[link_on(b, device)] = a;
  };
  join(previous_[link_on(mover, device)], next_[link_on(mover, device)]);
  if (move.right) {
    const int behind = next_[link_on(last, device)];
    join(last, mover);
    join(mover, behind);
    hold(device, first, mover);
  } else {
    const int ahead = previous_[link_on(first, device)];
    join(ahead, mover);
    join(mover, first);
    hold(device, mover, last);
  }
}

bool Words::apply(const Move& move) {
  const std::vector<int> steps = passed(move);
  if (!reorder(move, steps)) return false;
  for (const int d : in_->devices_of(block(mover(move)))) relink(move, steps, d);
  measure();
  return true;
}

}  // namespace ostinato
