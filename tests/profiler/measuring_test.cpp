// SPDX-License-Identifier: Apache-2.0
// Quantiles and link fits: plain numbers.

#include <gtest/gtest.h>

#include "profiler/cupti/cupti_status.h"
#include "profiler/operators/link_fit.h"
#include "profiler/operators/spread.h"

namespace ostinato {
namespace {

TEST(Spread, IsTheSamplesOwnMedianAndQuartiles) {
  const Spread spread = spread_of({40, 10, 30, 20});
  EXPECT_EQ(spread.low, 10);
  EXPECT_EQ(spread.median, 20);
  EXPECT_EQ(spread.high, 30);
  EXPECT_EQ(spread.repeats, 4);
}

TEST(Spread, OfOneAndOfNone) {
  EXPECT_EQ(spread_of({7}).low, 7);
  EXPECT_EQ(spread_of({7}).median, 7);
  EXPECT_EQ(spread_of({7}).high, 7);
  EXPECT_EQ(spread_of({}).repeats, 0);
}

TEST(LinkFit, FindsALinkThatIsOne) {
  const Link link{25'000, 2'000'000'000};
  std::vector<TransferSample> samples;
  for (Bytes bytes = 1024; bytes <= Bytes{64} << 20; bytes *= 4) samples.push_back({bytes, link.time(bytes)});
  const TransferCost cost = fit_link(2, 5, samples);
  EXPECT_EQ(cost.from, 2);
  EXPECT_EQ(cost.to, 5);
  EXPECT_NEAR(static_cast<double>(cost.link.latency), 25'000, 5);
  EXPECT_NEAR(static_cast<double>(cost.link.bytes_per_second), 2e9, 1e6);
  EXPECT_LT(cost.residual, 0.001);
}

TEST(LinkFit, StatesItsLargestRelativeError) {
  const TransferCost cost = fit_link(0, 1, {{1, 100}, {1, 300}});
  EXPECT_EQ(cost.link.bytes_per_second, 0);
  EXPECT_EQ(cost.link.latency, 120);  // weights 1/100^2 and 1/300^2
  EXPECT_DOUBLE_EQ(cost.residual, 0.6);
}

TEST(LinkFit, BytesAreFreeWhereMoreOfThemTakeNoLonger) {
  const TransferCost cost = fit_link(0, 1, {{1, 200}, {1000, 100}});
  EXPECT_EQ(cost.link.bytes_per_second, 0);
  EXPECT_GE(cost.link.latency, 100);
  EXPECT_LE(cost.link.latency, 200);
}

TEST(LinkFit, HasNoNegativeLatency) {
  const TransferCost cost = fit_link(0, 1, {{1'000, 500}, {10'000, 10'000}, {100'000, 110'000}});
  EXPECT_EQ(cost.link.latency, 0);
  EXPECT_GT(cost.link.bytes_per_second, 0);
}

TEST(CuptiStatus, SaysWhatItFound) {
  const CuptiStatus status = cupti_status();
  EXPECT_EQ(status.usable, status.version != 0);
  EXPECT_NE(status.detail.find(status.library.empty() ? "not found" : status.library), std::string::npos)
      << status.detail;
}

}  // namespace
}  // namespace ostinato
