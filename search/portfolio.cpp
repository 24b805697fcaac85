#include "search/portfolio.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "search/bounds/feasible.h"
#include "search/bounds/statements.h"
#include "search/bounds/windows.h"
#include "search/files/error.h"
#include "search/named/named.h"
#include "search/repetend/completion.h"
#include "search/schedule/dispatch.h"
#include "search/schedule/justify.h"
#include "search/schedule/local_search.h"
#include "search/schedule/shift.h"
#include "search/schedule/stretch.h"

namespace ostinato {
namespace {

/// Work (BeamResult::work) of a search that does not meet its bound: under a second of one core.
constexpr std::int64_t kWork = 15'000'000;
/// Steps that dispatching may run in all.
constexpr std::int64_t kDispatchedSteps = 1'000'000;
/// Steps that justification may run in all.
constexpr std::int64_t kJustifiedSteps = 1'500'000;
/// Steps that the local search may look at, once before each round: a tenth of a second.
constexpr std::int64_t kMovingWork = 5'000'000;
/// A move looks at all steps, and fewer than this many moves are not worth it.
constexpr std::int64_t kFewestMoves = 100;
constexpr int kWidths[] = {8, 32, 128, 512};
/// An exact search is this many times as wide as the others of its round.
constexpr int kExactFactor = 8;
constexpr int kExactWidth = 1024;
/// Work of the trial of all schedules (Trial::work) for the best makespan of a round, a fifth of a second,
/// and of the last one: far below what the checker may spend on the same.
constexpr std::int64_t kCertifyingWork = 4'000'000;
constexpr std::int64_t kLastCertifyingWork = 10'000'000;
/// A trial that could not keep so many lists of all steps is not begun.
constexpr std::int64_t kFewestLists = 128;
/// Work (Windows::work) for S4, a few hundredths of a second.
constexpr std::int64_t kSpanWork = 8'000'000;
/// Steps up to which a plan that meets its bound already is improved in memory.
constexpr std::int64_t kSparedSteps = 1'000'000;
/// Steps that are dispatched, and RepetendOptions::work, for that.
constexpr std::int64_t kSparingDispatch = 100'000;
constexpr std::int64_t kSparingWork = 2'000'000;

/// Pairs of blocks of one device that are compared to find the least interval of a repetition.
constexpr std::int64_t kComparedBlocks = 1 << 20;
bool intervals_affordable(const Instance& in) {
  std::int64_t pairs = 0;
  for (int d = 0; d < in.devices(); ++d) {
    const auto blocks = static_cast<std::int64_t>(in.blocks_on(d).size());
    pairs += blocks * blocks;
  }
  return pairs <= kComparedBlocks;
}

std::string method_of(const Repetend& repetend) { return fmt::format("repetend of {}", repetend.unroll); }

}  // namespace

Portfolio::Portfolio(const Instance& instance, const Bounds& bounds, const SearchOptions& options,
                     Clock::time_point began)
    : in_(instance),
      mirror_(instance.reversed()),
      bounds_(bounds),
      options_(options),
      began_(began),
      claims_{bounds.makespan(options.micro_batches), bounds.of(options.objective, options.micro_batches)},
      bound_(claims_.objective),
      micro_batches_(options.method == "auto" ? representative(in_, options.micro_batches)
                                              : options.micro_batches),
      best_(instance, micro_batches_, options.objective, options.micro_batches - micro_batches_),
      work_left_(share(kWork)) {
  if (options.objective == Objective::makespan && !few() && Propagation::affordable(in_, micro_batches_)) {
    common_.emplace(in_, mirror_, micro_batches_);
  }
}

/// True if the best plan meets the bound, which rises to it where nothing better can exist.
bool Portfolio::proved() {
  if (best_.empty()) return false;
  const Nanoseconds best = best_.score().objective;
  if (best <= bound_ || !common_ || best == limit_) return best <= bound_;
  limit_ = best;
  if (!common_->run(best)) bound_ = best;
  return best <= bound_;
}

bool Portfolio::stopped() {
  if ((options_.stop && options_.stop->load(std::memory_order_relaxed)) ||
      (options_.time_limit_seconds > 0 && seconds() > options_.time_limit_seconds)) {
    cut_ = true;
  }
  return cut_;
}

void Portfolio::report(const char* phase) {
  if (!options_.progress || best_.empty()) return;
  options_.progress({best_.score().objective, bound_, seconds(), phase});
}

/// A bound of the objective that the checker proves.
void Portfolio::claim(Nanoseconds bound) {
  claims_.objective = std::max(claims_.objective, bound);
  if (options_.objective == Objective::makespan) claims_.makespan = claims_.objective;
  bound_ = std::max(bound_, bound);
}

/// Where the best does not meet the bound: M5, S4.
void Portfolio::look_at_windows() {
  const std::int64_t steps = static_cast<std::int64_t>(in_.blocks()) * options_.micro_batches;
  if (windows_known_ || few() || best_.empty() || best_.score().objective <= bound_ ||
      steps > Windows::kMostSteps)
    return;
  windows_known_ = true;
  claim(bound_by_windows(in_, mirror_, options_.objective, options_.micro_batches, best_.score().objective,
                         kSpanWork));
}

void Portfolio::run_named() {
  const NamedSchedule named = named_schedule(options_.method, in_.placement(), micro_batches_);
  if (!named.orders) throw InputError("", 0, named.why_not);
  if (!best_.offer(*named.orders, options_.method)) {
    throw InputError("", 0, fmt::format("{} does not fit the memory of this placement", options_.method));
  }
}

void Portfolio::run() {
  const bool repeated = few();
  run_phases();
  if (!repeated) return;
  const bool found = !best_.empty();
  best_.repeat();
  micro_batches_ = options_.micro_batches;
  if (!found) return run_phases();
  if (proved() || stopped()) return;
  try_named();  // never worse than those that repeat nothing
  const SteadyState& steady = best_.repeated();
  if (steady.period <= bounds_.period(steady.unroll)) return;
  try_dispatch();  // what repeats nothing may have a better rate
  try_justified();
}

void Portfolio::run_phases() {
  try_sequential();
  try_named();
  if (options_.objective == Objective::latency && micro_batches_ > 1) try_rigid();
  look_at_windows();
  if (stopped()) return;
  try_dispatch();
  if (stopped()) return;
  find_repetends();
  try_justified();
  if (proved()) return spare_memory();
  for (const int width : kWidths) {
    truncated_ = false;
    try_moves(static_cast<std::uint64_t>(width));
    if (proved() || stopped() || certified(share(kCertifyingWork))) return;
    if (exhausted(std::min(kExactWidth, kExactFactor * width))) return;
    round(width);
    if (!truncated_) return;
  }
}

/// Where the objective meets its bound already (GPipe's often does, at the price of all activations), a
/// repetend may reach the same in less memory: in what it holds itself, or in twice that at both ends.
void Portfolio::spare_memory() {
  for (const Repetend& repetend : repetends_) {
    for (auto& sequence : completed(repetend, kWidths[0]).sequences) {
      best_.offer(sequence, method_of(repetend));
    }
    const std::vector<Bytes> held = held_by(in_, repetend);
    const Bytes most = *std::max_element(held.begin(), held.end());
    const std::vector<int> rigid = repeated(repetend);
    for (const Bytes room : {most, most > kUnlimited / 2 ? kUnlimited : 2 * most}) {
      if (stopped()) return;
      JustifyOptions options;
      for (int d = 0; d < in_.devices(); ++d) options.room.push_back(std::min(room, in_.room(d)));
      options.stop = [this] { return stopped(); };
      best_.offer(justify(in_, mirror_, micro_batches_, rigid, options).sequence, method_of(repetend));
    }
  }
  report("less memory");
}

void Portfolio::try_named() {
  const Chains chains(in_.placement());
  for (const std::string& name : named_schedules()) {
    if (stopped() && !best_.empty()) return;
    const NamedSchedule schedule = named_schedule(name, in_.placement(), micro_batches_, chains);
    if (schedule.orders) best_.offer(*schedule.orders, name);
  }
  report("named schedules");
}

void Portfolio::try_sequential() {
  const std::vector<int> one = fitting_order(in_, bounds_, micro_batches_);
  std::vector<int> all;
  for (int i = 0; i < micro_batches_; ++i) all.insert(all.end(), one.begin(), one.end());
  if (!one.empty()) best_.offer(all, "one micro-batch after another");
  // What takes and gives back in no time may fit though no order of single steps does.
  if (one.empty() && memory_in_no_time(in_)) {
    for (int i = 0; i < micro_batches_; ++i)
      all.insert(all.end(), in_.topological().begin(), in_.topological().end());
    best_.offer(all, "one micro-batch after another");
  }
  report("one micro-batch after another");
}

/// For the latency: the best schedule of one micro-batch, started again as soon as no two meet and the memory
/// allows.
void Portfolio::try_rigid() {
  SearchOptions options = options_;
  options.micro_batches = 1;
  options.objective = Objective::makespan;
  options.progress = {};
  if (options.time_limit_seconds > 0)
    options.time_limit_seconds = std::max(1e-3, options.time_limit_seconds - seconds());
  Portfolio one(in_, bounds_, options);
  try {
    one.run();
  } catch (const InfeasibleError&) {  // of one alone: others may give back what it takes
    return;
  }
  if (one.best().empty()) return;
  std::vector<Nanoseconds> start(static_cast<std::size_t>(in_.blocks()));
  for (const ScheduledBlock& s : one.best().schedule()) start[s.block] = s.start;
  const Nanoseconds after_the_end = one.best().score().makespan;
  Nanoseconds interval = intervals_affordable(in_) ? bounds_.period(1) : after_the_end;
  for (bool taken = false; !taken && interval <= after_the_end; interval += interval / 16 + 1) {
    if (interval < after_the_end) interval = least_interval(in_, start, interval);
    std::vector<ScheduledBlock> schedule;
    for (int i = 0; i < micro_batches_; ++i) {
      for (int b = 0; b < in_.blocks(); ++b) schedule.push_back({b, i, start[b] + i * interval});
    }
    sort_schedule(in_.placement(), schedule);
    taken = best_.offer(std::move(schedule), "one micro-batch, repeated");
  }
  report("one micro-batch, repeated");
}

/// Justifies the repetitions of the repetends, and the best schedule of all.
void Portfolio::try_justified() {
  std::int64_t left = share(kJustifiedSteps);
  const auto improve = [&](const std::vector<int>& sequence, const std::string& method) {
    for (const bool patient : {false, true}) {
      JustifyOptions options;
      options.patient = patient;
      options.stop = [this] { return stopped(); };
      options.passes = static_cast<int>(
          std::min<std::int64_t>(options.passes, left / static_cast<std::int64_t>(sequence.size() + 1)));
      if (options.passes == 0 || proved() || stopped()) return;
      const Justified better = justify(in_, mirror_, micro_batches_, sequence, options);
      left -= better.steps;
      best_.offer(better.sequence, method);
    }
  };
  for (const Repetend& repetend : repetends_) {
    const std::vector<int> rigid = repeated(repetend);
    best_.offer(rigid, method_of(repetend));
    improve(rigid, method_of(repetend));
  }
  improve(best_.sequence(), best_.method());
  report("justification");
}

/// Changes the best schedule on its critical path. A new `seed` tries what the last did not. A schedule that
/// is to be repeated is left alone: the moves care for the makespan, not for what repeats.
void Portfolio::try_moves(std::uint64_t seed) {
  const std::int64_t steps = static_cast<std::int64_t>(in_.blocks()) * micro_batches_;
  if (options_.objective != Objective::makespan || micro_batches_ != options_.micro_batches ||
      best_.empty() || kFewestMoves * steps > share(kMovingWork) || proved() || stopped())
    return;
  LocalSearchOptions options{.give_up = bound_, .work = share(kMovingWork), .seed = seed};
  options.stop = [this] { return stopped(); };
  best_.offer(local_search(in_, micro_batches_, best_.sequence(), options).sequence, "local search");
  report("local search");
}

void Portfolio::try_dispatch() {
  const std::int64_t most = share(kDispatchedSteps);
  std::int64_t steps = 0;
  for (const DispatchRule& rule : dispatch_rules(in_)) {
    for (const bool backwards : {false, true}) {
      const bool first = steps == 0;  // one rule runs at any size, where the bound is not met
      steps += static_cast<std::int64_t>(in_.blocks()) * micro_batches_;
      if (proved() ? !rule.phases || steps > kSparingDispatch : steps > most && !first)
        return report("dispatching");
      if (stopped()) return;
      std::vector<int> sequence =
          dispatch(backwards ? mirror_ : in_, micro_batches_, rule, [this] { return stopped(); });
      if (backwards) std::reverse(sequence.begin(), sequence.end());
      if (!sequence.empty()) best_.offer(sequence, "dispatch");
    }
  }
  report("dispatching");
}

void Portfolio::find_repetends() {
  if (proved() && static_cast<std::int64_t>(in_.blocks()) * micro_batches_ > kSparedSteps) return;
  RepetendOptions options;
  options.work = share(options.work);
  options.stop = [this] { return stopped(); };
  repetends_ = repetends_of_growing_rate(in_, bounds_, std::min(kMostUnroll, micro_batches_), options);
  if (repetends_.empty()) return;
  const Repetend& best = repetends_.back();
  if (proved()) options.work = std::min(options.work, kSparingWork);
  Repetend spare = with_least_memory(in_, best, options);
  if (held_by(in_, spare) != held_by(in_, best)) repetends_.push_back(std::move(spare));
}

void Portfolio::round(int width) {
  std::vector<Part> parts;
  for (const Repetend& repetend : repetends_) {
    parts.push_back({method_of(repetend), [&, width] { return completed(repetend, width); }});
  }
  const std::int64_t steps = static_cast<std::int64_t>(in_.blocks()) * micro_batches_;
  // Large cases get a narrow beam in the first round, and no other.
  while (width > 1 && width <= kWidths[0] && !affordable(beam_work(in_, steps, width))) width /= 2;
  BeamGoal goals[] = {horizon(false), horizon(true)};
  if (!few() && affordable(beam_work(in_, steps, width))) {
    for (int flavour = 0; flavour < kBeamFlavours; ++flavour) {
      for (const bool backwards : {false, true}) {
        parts.push_back({"beam", [=, &goals, this] {
                           return whole_horizon_beam(goals[backwards], backwards, width, flavour);
                         }});
      }
    }
  }
  run_parts(parts, "rounds of beam searches");
}

/// What a beam search of all micro-batches has to reach. Does not change while parts of a round run.
BeamGoal Portfolio::horizon(bool backwards) const {
  const Instance& in = backwards ? mirror_ : in_;
  return limit_ > 0 ? whole_horizon(in, micro_batches_, *common_, backwards)
                    : whole_horizon(in, micro_batches_);
}

void Portfolio::certify() {
  look_at_windows();
  if (!best_.empty() && claims_.objective < best_.score().objective && !cut_)
    certified(share(kLastCertifyingWork));
}

/// True if the trial of all schedules shows that none is better than the best, well within the work that
/// `ostinato verify` spends on it.
bool Portfolio::certified(std::int64_t work) {
  const std::int64_t steps = static_cast<std::int64_t>(in_.blocks()) * options_.micro_batches;
  if (options_.objective == Objective::latency || best_.empty() || steps * in_.blocks() > work / kFewestLists)
    return false;
  const Nanoseconds below = best_.score().objective;
  if (below == not_certified_ && work <= share(kCertifyingWork)) return false;
  const Trial tried = try_all(in_, mirror_, options_.objective, options_.micro_batches, below, work);
  not_certified_ = below;
  if (tried.verdict == Trial::none) {
    claims_.by_exhaustion = true;
    claim(below);
  }
  return proved();
}

/// True if no schedule is better than the best: all were covered.
bool Portfolio::exhausted(int width) {
  const std::int64_t steps = static_cast<std::int64_t>(in_.blocks()) * micro_batches_;
  if (few() || (options_.objective != Objective::makespan && !best_.empty()) ||
      !affordable(beam_work(in_, steps, width)))
    return false;
  BeamOptions options;
  options.exact = true;
  options.width = width;
  if (!best_.empty()) options.give_up = best_.score().makespan;
  options.stop = [this] { return stopped(); };
  const BeamResult result = beam_search(in_, horizon(false), options);
  work_left_ -= result.work;
  truncated_ = truncated_ || result.truncated;
  if (!result.order.empty()) best_.offer(result.order, "exact search");
  if (!result.truncated && best_.empty() && !memory_in_no_time(in_)) {
    throw InfeasibleError(
        fmt::format("all orders of {} micro-batches were tried, and none fits the memory", micro_batches_));
  }
  return !result.truncated;
}

void Portfolio::run_parts(const std::vector<Part>& parts, const char* phase) {
  const std::size_t at_once = static_cast<std::size_t>(std::max(1, options_.threads));
  for (std::size_t begin = 0; begin < parts.size(); begin += at_once) {
    const std::size_t end = std::min(parts.size(), begin + at_once);
    std::vector<Found> found(end - begin);
    std::vector<std::thread> threads;
    for (std::size_t i = begin + 1; i < end; ++i) {
      threads.emplace_back([&, i] { found[i - begin] = parts[i].run(); });
    }
    found[0] = parts[begin].run();
    for (std::thread& thread : threads) thread.join();
    for (std::size_t i = begin; i < end; ++i) {
      if (proved() || work_left_ <= 0) return;  // as if the parts had run one by one
      work_left_ -= found[i - begin].work;
      truncated_ = truncated_ || found[i - begin].truncated;
      for (const auto& sequence : found[i - begin].sequences) best_.offer(sequence, parts[i].method);
      report(phase);
    }
    if (stopped()) return;
  }
}

Portfolio::Found Portfolio::whole_horizon_beam(const BeamGoal& goal, bool backwards, int width, int flavour) {
  const Instance& in = backwards ? mirror_ : in_;
  BeamOptions options;
  options.width = width;
  options.flavour = flavour;
  if (limit_ > 0) options.give_up = limit_;
  options.stop = [this] { return stopped(); };
  BeamResult result = beam_search(in, goal, options);
  if (backwards) std::reverse(result.order.begin(), result.order.end());
  Found found;
  found.work = result.work;
  found.truncated = result.truncated;
  if (!result.order.empty()) found.sequences.push_back(std::move(result.order));
  return found;
}

/// The repetend from the first micro-batch to the last.
std::vector<int> Portfolio::repeated(const Repetend& repetend) const {
  return complete(in_, mirror_, repetend, {.micro_batches = micro_batches_, .width = 0}).sequence;
}

Portfolio::Found Portfolio::completed(const Repetend& repetend, int width) {
  Found found;
  CompletionOptions options;
  options.micro_batches = micro_batches_;
  options.stop = [this] { return stopped(); };
  for (const int w : {0, width}) {
    options.width = w;
    options.work = work_left_;
    Completed done = complete(in_, mirror_, repetend, options);
    found.work += done.work;
    found.truncated = true;
    if (!done.sequence.empty()) found.sequences.push_back(std::move(done.sequence));
  }
  return found;
}

}  // namespace ostinato
