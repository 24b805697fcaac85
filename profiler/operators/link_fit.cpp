// SPDX-License-Identifier: Apache-2.0
#include "profiler/operators/link_fit.h"

#include <algorithm>
#include <cmath>

namespace ostinato {
namespace {

struct Line {
  double latency = 0;   ///< ns
  double per_byte = 0;  ///< ns
};

/// Weighted least squares, closed form; with one distinct size, or a slope below zero, a constant.
Line least_squares(const std::vector<TransferSample>& samples) {
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  for (const TransferSample& sample : samples) {
    const double x = static_cast<double>(sample.bytes), y = static_cast<double>(sample.time);
    const double weight = 1 / (y * y);
    w += weight;
    wx += weight * x;
    wy += weight * y;
    wxx += weight * x * x;
    wxy += weight * x * y;
  }
  const double determinant = w * wxx - wx * wx;
  const double slope = determinant > 1e-12 * w * wxx ? (w * wxy - wx * wy) / determinant : 0;
  if (slope <= 0) return {wy / w, 0};
  const double latency = (wy - slope * wx) / w;
  if (latency >= 0) return {latency, slope};
  return {0, wxy / wxx};  // through the origin
}

}  // namespace

TransferCost fit_link(int from, int to, const std::vector<TransferSample>& samples) {
  const Line line = least_squares(samples);
  TransferCost cost{from, to, {std::llround(line.latency), 0}, 0};
  if (line.per_byte > 0) {
    cost.link.bytes_per_second = std::max<std::int64_t>(1, std::llround(1e9 / line.per_byte));
  }
  for (const TransferSample& sample : samples) {
    const double measured = static_cast<double>(sample.time);
    const double error = std::abs(static_cast<double>(cost.link.time(sample.bytes)) - measured) / measured;
    cost.residual = std::max(cost.residual, error);
  }
  return cost;
}

}  // namespace ostinato
