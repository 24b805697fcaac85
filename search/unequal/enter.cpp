// SPDX-License-Identifier: Apache-2.0
#include "search/unequal/enter.h"

#include <algorithm>
#include <numeric>

namespace ostinato::unequal {
namespace {

class Dispatcher {
 public:
  Dispatcher(const Jobs& jobs, const std::vector<int>& entry, const Rule& rule)
      : jobs_(jobs), entry_(entry), rule_(rule), rank_(entry.size()) {
    for (std::size_t k = 0; k < entry.size(); ++k) rank_[entry[k]] = static_cast<int>(k);
    const std::size_t steps = jobs.steps();
    arrival_.assign(steps, 0);
    missing_.resize(steps);
    for (int s = 0; s < jobs.steps(); ++s) missing_[s] = static_cast<int>(jobs.inputs(s).size());
    left_.assign(entry.size(), jobs.blocks());
    next_of_.assign(jobs.blocks(), 0);
    free_.assign(jobs.devices(), 0);
    used_.assign(free_.size(), 0);
  }

  std::vector<int> run(std::int64_t& work) {
    order_.reserve(arrival_.size());
    enter();
    while (static_cast<int>(order_.size()) < jobs_.steps()) {
      const int at = choose();
      if (at < 0) break;
      commit(at);
    }
    work += work_;
    if (static_cast<int>(order_.size()) < jobs_.steps()) return {};
    return std::move(order_);
  }

 private:
  struct Ready {
    int step;
    Nanoseconds priority;
  };

  void enter() {
    if (entered_ == entry_.size() || waiting_) return;
    if (rule_.in_flight > 0 && unfinished_ >= rule_.in_flight) return;
    const int i = entry_[entered_++];
    ++unfinished_;
    waiting_ = true;
    for (int b = 0; b < jobs_.blocks(); ++b) {
      const int s = i * jobs_.blocks() + b;
      if (missing_[s] == 0) ready_.push_back({s, priority_of(s)});
    }
  }

  bool may_run(int s) const {
    const int b = jobs_.block(s);
    if (jobs_.in_order(b) && next_of_[static_cast<std::size_t>(b)] != jobs_.micro_batch(s)) return false;
    for (const int d : jobs_.devices_of(s))
      if (used_[d] + std::max<Bytes>(jobs_.memory(s), 0) + jobs_.workspace(s) > jobs_.room(d)) return false;
    return true;
  }

  Nanoseconds could_start(int s) const {
    Nanoseconds start = arrival_[s];
    for (const int d : jobs_.devices_of(s)) start = std::max(start, free_[d]);
    return start;
  }

  /// Less is earlier, among steps that could start at one time.
  Nanoseconds priority_of(int s) const {
    if (rule_.first == Rule::oldest) return rank_[jobs_.micro_batch(s)];
    if (rule_.first == Rule::longest) return -jobs_.tail(s);
    // Of the longest path through the step, in 1024ths, what follows it.
    const Nanoseconds path = jobs_.head(s) + jobs_.time(s) + jobs_.tail(s);
    return jobs_.tail(s) / std::max<Nanoseconds>(1, path / 1024);
  }

  bool goes_before(const Ready& x, const Ready& y) const {
    if (x.priority != y.priority) return x.priority < y.priority;
    const int rank_x = rank_[jobs_.micro_batch(x.step)];
    const int rank_y = rank_[jobs_.micro_batch(y.step)];
    if (rank_x != rank_y) return rank_x < rank_y;
    if (jobs_.tail(x.step) != jobs_.tail(y.step)) return jobs_.tail(x.step) < jobs_.tail(y.step);
    return x.step < y.step;
  }

  int choose() {
    work_ += static_cast<std::int64_t>(ready_.size()) + 4;
    int best = -1;
    Nanoseconds least = 0;
    for (std::size_t k = 0; k < ready_.size(); ++k) {
      const Nanoseconds start = could_start(ready_[k].step);
      if (best >= 0 && start > least) continue;
      if (!may_run(ready_[k].step)) continue;
      if (best < 0 || start < least || goes_before(ready_[k], ready_[best]))
        best = static_cast<int>(k), least = start;
    }
    return best;
  }

  void commit(int at) {
    const int s = ready_[at].step;
    ready_[at] = ready_.back();
    ready_.pop_back();
    const Nanoseconds end = could_start(s) + jobs_.time(s);
    for (const int d : jobs_.devices_of(s)) {
      free_[d] = end;
      used_[d] += jobs_.memory(s);
    }
    order_.push_back(s);
    ++next_of_[static_cast<std::size_t>(jobs_.block(s))];
    for (const Jobs::Input& out : jobs_.followers(s)) {
      const std::size_t next = out.step;
      arrival_[next] = std::max(arrival_[next], end + out.transfer);
      if (--missing_[next] == 0) ready_.push_back({out.step, priority_of(out.step)});
    }
    const std::size_t i = jobs_.micro_batch(s);
    if (static_cast<std::size_t>(rank_[i]) + 1 == entered_) waiting_ = false;
    if (--left_[i] == 0) --unfinished_;
    enter();
  }

  const Jobs& jobs_;
  const std::vector<int>& entry_;
  const Rule& rule_;
  std::vector<int> rank_, missing_, left_, order_;
  std::vector<int> next_of_;  ///< of each block that keeps the order, the micro-batch that it may run next
  std::vector<Ready> ready_;
  std::vector<Nanoseconds> arrival_, free_;
  std::vector<Bytes> used_;
  std::int64_t work_ = 0;
  std::size_t entered_ = 0;
  int unfinished_ = 0;
  bool waiting_ = false;  ///< the last one to enter has not begun
};

/// Work of each micro-batch on all devices together, or on one.
std::vector<Nanoseconds> work_of(const Jobs& jobs, int device) {
  std::vector<Nanoseconds> work(jobs.micro_batches(), 0);
  for (int s = 0; s < jobs.steps(); ++s)
    for (const int d : jobs.devices_of(s))
      if (device < 0 || d == device) work[jobs.micro_batch(s)] += jobs.time(s);
  return work;
}

/// Every second one to the front, the rest behind them from the end: small, ..., large, ..., small.
std::vector<int> heaped(const std::vector<int>& rising) {
  std::vector<int> front, back;
  for (std::size_t k = 0; k < rising.size(); ++k) (k % 2 == 0 ? front : back).push_back(rising[k]);
  front.insert(front.end(), back.rbegin(), back.rend());
  return front;
}

}  // namespace

std::vector<int> dispatch(const Jobs& jobs, const std::vector<int>& entry, const Rule& rule,
                          std::int64_t& work) {
  return Dispatcher(jobs, entry, rule).run(work);
}

std::vector<std::vector<int>> usual_entries(const Jobs& jobs) {
  std::vector<int> given(jobs.micro_batches());
  std::iota(given.begin(), given.end(), 0);
  const std::vector<Nanoseconds> work = work_of(jobs, -1);
  const auto by = [&](auto less) {
    std::vector<int> entry = given;
    std::stable_sort(entry.begin(), entry.end(), less);
    return entry;
  };
  const auto at = [](const std::vector<Nanoseconds>& list, int i) { return list[i]; };
  std::vector<std::vector<int>> entries = {given};
  entries.push_back(by([&](int i, int j) { return at(work, i) < at(work, j); }));
  entries.push_back(by([&](int i, int j) { return at(work, i) > at(work, j); }));
  entries.push_back(heaped(entries[1]));
  const std::vector<Nanoseconds> first = work_of(jobs, 0), last = work_of(jobs, jobs.devices() - 1);
  entries.push_back(by([&](int i, int j) {
    const bool front_i = at(first, i) < at(last, i), front_j = at(first, j) < at(last, j);
    if (front_i != front_j) return front_i;
    return front_i ? at(first, i) < at(first, j) : at(last, i) > at(last, j);
  }));
  std::vector<std::vector<int>> different;
  for (std::vector<int>& entry : entries)
    if (std::find(different.begin(), different.end(), entry) == different.end())
      different.push_back(std::move(entry));
  return different;
}

}  // namespace ostinato::unequal
