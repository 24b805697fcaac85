// SPDX-License-Identifier: Apache-2.0
#pragma once
// The techniques of a search, a table: each offers schedules to the incumbent or proves bounds, and has its
// own file. docs/search.md, "The techniques", says what each does and costs. portfolio.h says when each runs.
//
//   Hunt hunt(...);
//   techniques::kNamed.run(hunt);

#include "search/portfolio/hunt.h"

namespace ostinato {

struct Technique {
  const char* name;         ///< as docs/search.md has it
  void (*run)(Hunt& hunt);  ///< nothing where it does not apply
};

namespace techniques {

extern const Technique kSequential;     ///< one micro-batch after another: proves that something fits
extern const Technique kNamed;          ///< every named schedule
extern const Technique kRepeated;       ///< latency: one micro-batch, repeated
extern const Technique kWindows;        ///< bounds M4 to M6, S4 to S6
extern const Technique kDispatch;       ///< priority rules
extern const Technique kPatience;       ///< the same where devices may wait
extern const Technique kRepetend;       ///< the repeating parts: fills Hunt::repetends
extern const Technique kSweeps;         ///< more of them, at better rates under tight memory
extern const Technique kJustification;  ///< of the repetends' repetitions, and of the best
extern const Technique kOthers;         ///< more of the same rates, justified; keeps what becomes the best
extern const Technique kSparing;        ///< less memory where the bound is met
extern const Technique kLocalSearch;    ///< moves on the critical path; another seed for another width
extern const Technique kExact;          ///< sets Hunt::exhausted. Throws InfeasibleError with its proof
extern const Technique kOrders;         ///< branch and bound, for every objective; the same two
extern const Technique kBeams;       ///< completions of the repetends, and the whole horizon: of Hunt::width
extern const Technique kTrial;       ///< of all schedules, as far as the checker follows: section E
extern const Technique kQuickTrial;  ///< the same with less work, before the rounds and in them
extern const Technique kMoreRepetends;  ///< of better rates, with ten times the work; last

}  // namespace techniques

/// All of them, as a search first comes to them and docs/search.md lists them.
std::vector<const Technique*> all_techniques();

/// The width of a round before there are repetends, for few steps, and the widths of the rounds after.
inline constexpr int kFirstWidth = 1;
inline constexpr int kWidths[] = {8, 32, 128, 512};

/// Throws InfeasibleError where every schedule was covered, and there is none.
void refuse_what_fits_in_no_order(const Hunt& hunt);

}  // namespace ostinato
