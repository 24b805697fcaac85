// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "search/portfolio/techniques.h"
#include "search/schedule/order_search.h"
#include "search/schedule/words.h"

namespace ostinato {
namespace {

/// Work (OrderSearchResult::work) of a round, in all orders and in those near the best: a tenth of a second
/// each.
constexpr std::int64_t kOrdersWork = 20'000'000;
constexpr std::int64_t kNearWork = 40'000'000;
/// Of the former, the first round spends a quarter, and nothing of the latter.
constexpr int kFirstShare = 4;

Nanoseconds limit_of(Hunt& hunt) {
  return hunt.to_beat().value_or(beyond_all_schedules(hunt.in, hunt.micro_batches));
}

void offer(Hunt& hunt, const std::vector<int>& sequence) {
  if (hunt.options.objective == Objective::makespan) {
    hunt.best.offer(sequence, techniques::kOrders.name);
  } else {
    const Words words(hunt.in, hunt.micro_batches, sequence, hunt.options.objective);
    hunt.best.offer(words.schedule(), techniques::kOrders.name);
  }
}

/// Each schedule that is found makes the limit of the next search, until one finds none or the work is used
/// up.
void descend(Hunt& hunt, std::int64_t work,
             const std::function<OrderSearchResult(const OrderSearchOptions&)>& search) {
  OrderSearchOptions options{.objective = hunt.options.objective, .work = work};
  options.stop = hunt.stop();
  while (!hunt.proved() && !hunt.stopped() && options.work > 0) {
    options.below = limit_of(hunt);
    const OrderSearchResult result = search(options);
    options.work -= result.work;
    hunt.exhausted = result.complete && result.sequence.empty();
    if (result.sequence.empty()) return;
    offer(hunt, result.sequence);
    if (limit_of(hunt) == options.below) return;
  }
}

void search_all_orders(Hunt& hunt) {
  hunt.exhausted = false;
  if (hunt.few() || !orders_can_be_searched(hunt.in, hunt.micro_batches)) return;
  const std::int64_t work = hunt.width == kFirstWidth ? kOrdersWork / kFirstShare : kOrdersWork;
  descend(hunt, hunt.share(work), [&](const OrderSearchOptions& options) {
    return search_orders(hunt.in, hunt.micro_batches, options);
  });
  refuse_what_fits_in_no_order(hunt);
  // The makespan has beams for what is too large here.
  if (hunt.width == kFirstWidth || hunt.exhausted || hunt.best.empty() ||
      hunt.options.objective == Objective::makespan)
    return;
  std::uint64_t seed = static_cast<std::uint64_t>(hunt.width) << 32;
  descend(hunt, hunt.share(kNearWork), [&](const OrderSearchOptions& options) {
    return search_near(hunt.in, hunt.micro_batches, options, hunt.best.sequence(), seed++);
  });
}

}  // namespace

const Technique techniques::kOrders = {"search of orders", search_all_orders};

}  // namespace ostinato
