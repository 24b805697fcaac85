// SPDX-License-Identifier: Apache-2.0
// Any sequence of calls of the C++ API: the checker accepts every plan, what is written and read again is
// equal, one thread and four find the same, no named schedule that fits is shorter, no bound is above what it
// bounds, and errors are those that are documented.
//
//   OSTINATO_SOAK_CALLS=1000 OSTINATO_SOAK_SEED=7 search_tests --gtest_filter='ApiModel.*'
//   OSTINATO_REPLAY_CALLS=calls.txt search_tests --gtest_filter='ApiModel.*'     # which it shrinks, too

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>

#include "search/checker/checker.h"
#include "search/files/error.h"
#include "search/named/named.h"
#include "search/named/references.h"
#include "search/pareto.h"
#include "search/placement/placement_toml.h"
#include "search/placement/shapes.h"
#include "search/plan/plan_json.h"
#include "search/search.h"
#include "search/unequal/unequal.h"
#include "tests/search/random_plan.h"
#include "tests/search/strange.h"
#include "tests/search/support/calls.h"

namespace ostinato {
namespace {

using test::Call;
using test::Lines;

std::int64_t asked(const char* variable, std::int64_t usual) {
  const char* value = std::getenv(variable);
  return value == nullptr ? usual : std::stoll(value);
}

struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void must(bool holds, const std::string& otherwise) {
  if (!holds) throw Wrong(otherwise);
}

Objective objective_of(const std::string& name) {
  for (const Objective objective : {Objective::span, Objective::latency})
    if (name == to_string(objective)) return objective;
  return Objective::makespan;
}

/// What the calls have made, and how often each verb did something.
class Model {
 public:
  void make(const std::string& line) {
    const Call call = test::parse_call(line);
    try {
      if (call.objects.empty() || call.verb == "shape" || (known(call) && fits(call))) {
        act(call);
        ++made_[call.verb];
      }
    } catch (const InputError& error) {
      refused(call, error.what());
    } catch (const InfeasibleError& error) {
      must(call.verb == "search" || call.verb == "pareto" || call.verb == "unequal",
           "infeasible, which is said of schedules");
      refused(call, error.what());
    } catch (const UndecidedError& error) {
      refused(call, error.what());
    }
  }

  const std::map<std::string, int>& made() const { return made_; }

 private:
  struct Planned {
    Plan plan;
    Placement placement;
  };

  bool known(const Call& call) const {
    return placements_.count(call.objects[0]) > 0 || plans_.count(call.objects[0]) > 0;
  }
  /// The object is of the kind that the call takes.
  bool fits(const Call& call) const {
    const bool of_a_plan = call.verb == "written" || call.verb == "damaged_plan";
    return of_a_plan == (plans_.count(call.objects[0]) > 0);
  }

  void refused(const Call& call, const std::string& why) {
    must(!why.empty(), "an error says nothing");
    ++made_[call.verb + ", refused"];
  }

  void act(const Call& call) {
    if (call.verb == "shape") return shape_of(call);
    if (call.verb == "strange") return strange_of(call);
    if (call.verb == "random") {
      test::Random random(static_cast<std::uint64_t>(call.number("seed", 0)));
      placements_[call.makes] = test::random_placement(random);
      return;
    }
    if (call.verb == "search") return search_of(call);
    if (call.verb == "pareto") return pareto_of(call);
    if (call.verb == "unequal") return unequal_of(call);
    if (call.verb == "written") return written(plans_.at(call.objects[0]));
    if (call.verb == "reread") return reread(call);
    if (call.verb == "damaged_plan") return damaged_plan(call);
    if (call.verb == "damaged_placement") return damaged_placement(call);
    throw std::invalid_argument("no call: " + call.verb);
  }

  // ---- placements

  void shape_of(const Call& call) {
    ShapeOptions options{.devices = static_cast<int>(call.number("devices", 4)),
                         .chunks = static_cast<int>(call.number("chunks", 2)),
                         .forward = call.number("forward", 3),
                         .backward = call.number("backward", 5),
                         .weight = call.number("weight", 0),
                         .shard_forward = call.number("forward", 3),
                         .shard_backward = call.number("backward", 5),
                         .capacity = call.number("capacity", kUnlimited),
                         .link = {.latency = call.number("latency", 0)},
                         .bytes = call.number("bytes", 0),
                         .training = call.number("training", 1) != 0};
    placements_[call.makes] = shape(call.objects.at(0), options);
  }

  void strange_of(const Call& call) {
    test::Dice dice(static_cast<unsigned>(call.number("seed", 0)));
    Placement p = call.number("pipeline", 0) != 0
                      ? test::strange_pipeline(dice)
                      : test::strange(dice, static_cast<int>(call.number("blocks", 3)));
    placements_[call.makes] = p;
  }

  void reread(const Call& call) {
    const Placement& p = placements_.at(call.objects[0]);
    const std::string text = format_placement(p);
    const Placement again = parse_placement(text, "placement.toml").placement;
    must(format_placement(again) == text, "a placement is another one when it is written and read again");
    must(quick_plan(again) == quick_plan(p), "a placement that was read has another plan");
    placements_[call.makes] = again;
  }

  /// Its text, or why there is none.
  static std::string quick_plan(const Placement& p) {
    try {
      return text_of({search(p, {.micro_batches = 2, .time_limit_seconds = 0, .effort = 5}), p});
    } catch (const std::runtime_error& error) {
      return error.what();
    }
  }

  // ---- plans

  static SearchOptions options_of(const Call& call) {
    return {.micro_batches = static_cast<int>(call.number("micro_batches", 1)),
            .objective = objective_of(call.text("objective", "makespan")),
            .time_limit_seconds = 0,
            .seed = static_cast<std::uint64_t>(call.number("seed", 0)),
            .effort = static_cast<int>(call.number("effort", 20)),
            .method = call.text("method", "auto")};
  }

  /// What `find` gives, or how it was refused, is the same with one thread and with four.
  template <typename Find>
  static Plan found(SearchOptions options, const Placement& p, Find find) {
    const auto bytes = [&](int threads, Plan* plan) {
      options.threads = threads;
      try {
        *plan = find(options);
        return text_of({*plan, p});
      } catch (const std::runtime_error& error) {
        return std::string(error.what());
      }
    };
    Plan one, four;
    must(bytes(1, &one) == bytes(4, &four), "four threads find another plan than one");
    return four.micro_batches > 0 ? four : find(options);  // refused: throws
  }

  static std::string text_of(const Planned& it) { return format_plan(it.plan, it.placement); }

  void keep(const Call& call, const Plan& plan, const Placement& p) {
    const CheckResult check = check_plan(plan, p);
    must(check.ok(), "the checker: " + (check.ok() ? "" : check.failures[0]));
    must(plan.lower_bound.makespan <= plan.makespan, "a bound is above the makespan");
    must(plan.lower_bound.objective <= objective_value(plan, p), "a bound is above the objective");
    must(!plan.capacity || plan.capacity->lower_bound <= objective_value(plan, p),
         "the bound within this memory is above the objective");
    plans_[call.makes] = {plan, p};
  }

  /// `value`: of the plan that was found; none: nothing was.
  static void against_named(const Placement& p, const SearchOptions& options,
                            std::optional<Nanoseconds> value) {
    for (const Reference& named : references(p, options.micro_batches, options.objective)) {
      must(!named.fits || (value && *value <= named.value),
           fmt::format("{} fits, and takes {}: the search finds {}", named.name, named.value,
                       value ? std::to_string(*value) : "nothing"));
    }
  }

  void search_of(const Call& call) {
    const Placement& p = placements_.at(call.objects[0]);
    const SearchOptions options = options_of(call);
    try {
      const Plan plan = found(options, p, [&](const SearchOptions& o) { return search(p, o); });
      if (options.method == "auto") against_named(p, options, objective_value(plan, p));
      keep(call, plan, p);
    } catch (const InfeasibleError&) {
      against_named(p, options, {});
      throw;
    }
  }

  void pareto_of(const Call& call) {
    const Placement& p = placements_.at(call.objects[0]);
    const ParetoCurve curve = pareto_memory(p, options_of(call), static_cast<int>(call.number("points", 3)));
    Nanoseconds before = -1;
    for (const Plan& plan : curve.plans) {
      const Nanoseconds value = objective_value(plan, p);
      must(value > before, "a plan with less memory is not longer");
      before = value;
      keep(call, plan, p);
    }
  }

  void unequal_of(const Call& call) {
    const Placement& p = placements_.at(call.objects[0]);
    std::vector<MicroBatch> sizes;
    for (std::string left = call.text("sizes", "1"); !left.empty();) {
      const std::size_t comma = std::min(left.find(','), left.size());
      sizes.push_back(scaled(p, std::stoll(left.substr(0, comma)), call.number("of", 10)));
      left = left.substr(std::min(comma + 1, left.size()));
    }
    const UnequalOptions options{.work = 50'000, .keep_order = call.number("keep_order", 0) != 0};
    const Plan plan = search_unequal(p, sizes, options);
    must(text_of({plan, p}) == text_of({search_unequal(p, sizes, options), p}),
         "another plan the second time");
    for (const UsualSchedule& usual : usual_schedules(p, sizes)) {
      must(options.keep_order || !usual.fits || plan.makespan <= usual.makespan,
           fmt::format("{} takes {}, and the plan {}", usual.name, usual.makespan, plan.makespan));
    }
    keep(call, plan, p);
  }

  // ---- files

  void written(const Planned& it) {
    const std::string text = text_of(it);
    const Plan again = parse_plan(text, "plan.json", it.placement, "");
    must(text_of({again, it.placement}) == text, "a plan is another one when it is written and read again");
    must(figures(again) == figures(it.plan),
         fmt::format("a plan that was read has other figures: {}, and not {}", fmt::join(figures(again), " "),
                     fmt::join(figures(it.plan), " ")));
    must(again.schedule == it.plan.schedule && again.peak_memory == it.plan.peak_memory &&
             again.sizes == it.plan.sizes,
         "a plan that was read is another one");
    must(check_plan(again, it.placement).ok(), "a plan that was read does not hold");
  }

  static std::vector<Nanoseconds> figures(const Plan& plan) {
    return {plan.micro_batches,
            plan.makespan,
            plan.span,
            plan.steady_state.period,
            plan.steady_state.unroll,
            plan.steady_state.first,
            plan.steady_state.count,
            plan.lower_bound.makespan,
            plan.lower_bound.period,
            plan.lower_bound.objective,
            plan.optimal.makespan,
            plan.optimal.period,
            plan.optimal.objective,
            plan.by_exhaustion.makespan,
            plan.by_exhaustion.span,
            plan.capacity ? plan.capacity->lower_bound : -1,
            plan.capacity ? plan.capacity->memory : -1};
  }

  static std::string damaged(std::string text, const Call& call) {
    text[static_cast<std::size_t>(call.number("at", 0)) % text.size()] =
        static_cast<char>(call.number("byte", '0'));
    return text;
  }

  void damaged_plan(const Call& call) {
    const Planned& it = plans_.at(call.objects[0]);
    const Plan other = parse_plan(damaged(text_of(it), call), "plan.json", it.placement, "");
    const std::string written = text_of({other, it.placement});
    must(text_of({parse_plan(written, "plan.json", it.placement, ""), it.placement}) == written,
         "a damaged plan is another one when it is written and read again");
    const bool same = other.schedule == it.plan.schedule && other.makespan == it.plan.makespan;
    must(same || other.micro_batches == it.plan.micro_batches || !check_schedule(other, it.placement).ok(),
         "the checker passes a damaged plan");
  }

  void damaged_placement(const Call& call) {
    const std::string text = damaged(format_placement(placements_.at(call.objects[0])), call);
    const std::string written = format_placement(parse_placement(text, "placement.toml").placement);
    must(format_placement(parse_placement(written, "again.toml").placement) == written,
         "a damaged placement is another one when it is written and read again");
  }

  std::map<std::string, Placement> placements_;
  std::map<std::string, Planned> plans_;
  std::map<std::string, int> made_;
};

/// Any exception but those that Model knows is a fault, too. `counts`: what was made is added to it.
std::string run(const Lines& lines, std::map<std::string, int>* counts) {
  Model model;
  for (const std::string& line : lines) {
    try {
      model.make(line);
    } catch (const std::exception& error) {
      return fmt::format("{}: {}", line, error.what());
    }
  }
  if (counts != nullptr) {
    for (const auto& [verb, count] : model.made()) (*counts)[verb] += count;
  }
  return "";
}

std::string run_alone(const Lines& lines) { return run(lines, nullptr); }

/// The sequence of a seed: first a placement or two, then anything.
Lines drawn(std::uint64_t seed) {
  test::Random random(seed);
  const auto any = [&](std::int64_t low, std::int64_t high) { return random.between(low, high); };
  const auto one_of = [&](const std::vector<std::string>& names) {
    return names[static_cast<std::size_t>(any(0, std::ssize(names) - 1))];
  };
  const std::vector<std::string> objectives = {"makespan", "makespan", "span", "latency"};
  std::vector<std::string> methods(named_schedules().begin(), named_schedules().end());
  methods.emplace_back("nonesuch");
  std::vector<std::string> shapes = shape_names(), placements, plans;
  shapes.emplace_back("wheel");
  Lines lines;
  const auto placement = [&]() -> std::string {
    switch (any(0, 2)) {
      case 0:
        return fmt::format(
            "shape {} devices={} chunks={} forward={} backward={} weight={} capacity={} latency={} bytes={} "
            "training={}",
            one_of(shapes), any(1, 4), any(1, 3), any(0, 9), any(1, 9), any(0, 2) * any(0, 4),
            random.chance(60) ? kUnlimited : any(0, 9), random.chance(50) ? 0 : any(1, 4), any(0, 2),
            random.chance(85) ? 1 : 0);
      case 1:
        return fmt::format("strange seed={} blocks={} pipeline={}", any(0, 1 << 20), any(1, 5), any(0, 1));
      default:
        return fmt::format("random seed={}", any(0, 1 << 20));
    }
  };
  const auto search_call = [&](const std::string& from) -> std::string {
    const std::string usual = fmt::format("{} micro_batches={} objective={} effort={} seed={}", from,
                                          any(0, 4), one_of(objectives), any(1, 40), any(0, 3));
    switch (any(0, 4)) {
      case 0:
        return fmt::format("pareto {} points={}", usual, any(2, 4));
      case 1: {
        std::string sizes = std::to_string(any(0, 30));
        for (std::int64_t more = any(0, 4); more > 0; --more) sizes += fmt::format(",{}", any(0, 30));
        return fmt::format("unequal {} sizes={} of={} keep_order={}", from, sizes, any(1, 20), any(0, 1));
      }
      default:
        return fmt::format("search {} method={}", usual, random.chance(70) ? "auto" : one_of(methods));
    }
  };
  for (int i = 0; i < 12; ++i) {
    const std::string name = fmt::format("x{}", i);
    const std::int64_t kind = any(0, 9);
    if (placements.empty() || kind < 2) {
      lines.push_back(name + " = " + placement());
      placements.push_back(name);
    } else if (plans.empty() || kind < 6) {
      lines.push_back(name + " = " + search_call(one_of(placements)));
      plans.push_back(name);
    } else if (kind == 6) {
      lines.push_back(name + " = reread " + one_of(placements));
      placements.push_back(name);
    } else if (kind == 7) {
      const bool of_plan = random.chance(60);
      lines.push_back(fmt::format("damaged_{} {} at={} byte={}", of_plan ? "plan" : "placement",
                                  one_of(of_plan ? plans : placements), any(0, 5000),
                                  random.chance(70) ? any('0', '9') : any(32, 126)));
    } else {
      lines.push_back("written " + one_of(plans));
    }
  }
  return lines;
}

std::filesystem::path record() {
  return std::filesystem::path(::testing::TempDir()) / fmt::format("calls-{}.txt", ::getpid());
}

TEST(ApiModel, AnySequenceOfCalls) {
  if (const char* file = std::getenv("OSTINATO_REPLAY_CALLS")) {
    const Lines lines = test::read_lines(file);
    const std::string wrong = test::run_apart(lines, run_alone);
    ASSERT_EQ(wrong, "") << fmt::format("{}", fmt::join(test::shrunk(lines, run_alone), "\n"));
    return;
  }
  const std::int64_t count = asked("OSTINATO_SOAK_CALLS", 60), first = asked("OSTINATO_SOAK_SEED", 1);
  std::map<std::string, int> counts;
  for (std::int64_t seed = first; seed < first + count; ++seed) {
    const auto counted = [&](const Lines& lines) { return run(lines, &counts); };
    const std::string wrong = test::tried(drawn(static_cast<std::uint64_t>(seed)), counted, record());
    ASSERT_EQ(wrong, "") << "seed " << seed;
  }
  for (const char* verb : {"shape", "strange", "random", "search", "pareto", "unequal", "written", "reread"})
    EXPECT_GT(counts[verb], 0) << verb;
  for (const auto& [verb, times] : counts) std::cout << times << " " << verb << "; ";
  std::cout << count << " sequences\n";
}

// The recorder itself.

TEST(Calls, AreReadAsTheyAreWritten) {
  const Call call = test::parse_call("p1 = shape v devices=3 sizes=1,2");
  EXPECT_EQ(call.makes, "p1");
  EXPECT_EQ(call.verb, "shape");
  EXPECT_EQ(call.objects, std::vector<std::string>{"v"});
  EXPECT_EQ(call.number("devices", 0), 3);
  EXPECT_EQ(call.text("sizes", ""), "1,2");
  EXPECT_EQ(call.number("chunks", 7), 7);
  EXPECT_THROW(test::parse_call("p1 ="), std::invalid_argument);
}

/// Fails where "b" comes after "a": in words, or by a crash.
std::string a_then_b(const Lines& lines, bool crashes) {
  const auto a = std::find(lines.begin(), lines.end(), "a");
  if (std::find(a, lines.end(), "b") == lines.end()) return "";
  if (crashes) std::abort();
  return "b after a";
}

TEST(Calls, ThatFailAreShrunkAndLeftInAFile) {
  const Lines lines = {"c", "b", "a", "c", "c", "a", "c", "b", "c"};
  const auto run = [](const Lines& some) { return a_then_b(some, false); };
  const std::filesystem::path file = record();
  const std::string said = test::tried(lines, run, file);
  EXPECT_TRUE(said.starts_with("b after a\nafter these 2 of 9 calls")) << said;
  EXPECT_EQ(test::read_lines(file), (Lines{"a", "b"}));
  EXPECT_EQ(test::tried({"b", "a"}, run, file), "");
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(Calls, ThatCrashAreShrunkToo) {
  const auto run = [](const Lines& some) { return a_then_b(some, true); };
  EXPECT_EQ(test::run_apart({"a", "b"}, run), fmt::format("the process ended by signal {}", SIGABRT));
  EXPECT_EQ(test::shrunk({"c", "a", "c", "b", "b"}, run), (Lines{"a", "b"}));
}

}  // namespace
}  // namespace ostinato
