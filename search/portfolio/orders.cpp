// SPDX-License-Identifier: Apache-2.0
#include "search/portfolio/techniques.h"
#include "search/schedule/order_search.h"
#include "search/schedule/words.h"

namespace ostinato {
namespace {

/// Work (OrderSearchResult::work) of a round: a twentieth of a second.
constexpr std::int64_t kOrdersWork = 20'000'000;

void offer(Hunt& hunt, const std::vector<int>& sequence) {
  if (hunt.options.objective == Objective::makespan) {
    hunt.best.offer(sequence, techniques::kOrders.name);
  } else {
    const Words words(hunt.in, hunt.micro_batches, sequence, hunt.options.objective);
    hunt.best.offer(words.schedule(), techniques::kOrders.name);
  }
}

/// Each schedule that is found makes the limit of the next search, until one finds none.
void search_all_orders(Hunt& hunt) {
  hunt.exhausted = false;
  if (hunt.few() || !orders_can_be_searched(hunt.in, hunt.micro_batches)) return;
  OrderSearchOptions options{.objective = hunt.options.objective, .work = hunt.share(kOrdersWork)};
  options.stop = hunt.stop();
  while (!hunt.proved() && !hunt.stopped() && options.work > 0) {
    options.below = hunt.to_beat().value_or(beyond_all_schedules(hunt.in, hunt.micro_batches));
    const OrderSearchResult result = search_orders(hunt.in, hunt.micro_batches, options);
    options.work -= result.work;
    hunt.exhausted = result.complete && result.sequence.empty();
    refuse_what_fits_in_no_order(hunt);
    if (result.sequence.empty()) return;
    offer(hunt, result.sequence);
    if (hunt.to_beat() == options.below) return;
  }
}

}  // namespace

const Technique techniques::kOrders = {"search of orders", search_all_orders};

}  // namespace ostinato
