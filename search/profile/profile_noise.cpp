// SPDX-License-Identifier: Apache-2.0
#include "search/profile/profile_noise.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "search/files/counted.h"
#include "search/files/value.h"

namespace ostinato {
namespace {

constexpr double kUnknown = 0.5;   // of the median
constexpr double kMatters = 0.01;  // of a micro-batch
constexpr std::size_t kNamed = 4;  // layers

struct Row {
  const LayerCost* layer;
  double apart;  // the quartiles, as a share of the median
};

double range_of(const Spread& spread) {
  return static_cast<double>(spread.high) - static_cast<double>(spread.low);
}

double median_of(const LayerCost& layer) {
  return static_cast<double>(layer.forward.median) + static_cast<double>(layer.backward.median);
}

/// The worse of forward and backward, as far as it matters to a micro-batch of `total`; 0: it does not.
double apart(const LayerCost& layer, double times, double total) {
  double worst = 0;
  for (const Spread* spread : {&layer.forward, &layer.backward}) {
    const double range = range_of(*spread);
    const double share = range / std::max(1.0, static_cast<double>(spread->median));
    if (times * range > kMatters * total && share > kUnknown) worst = std::max(worst, share);
  }
  return worst;
}

}  // namespace

double unknown_share(const Profile& profile) {
  double total = 0, apart = 0;
  for (const LayerCost& layer : profile.layers) {
    total += median_of(layer);
    apart += range_of(layer.forward) + range_of(layer.backward);
  }
  return total > 0 ? std::max(0.0, apart / 2 / total) : 0;
}

std::string noise_of(const Profile& profile) {
  std::vector<double> times(profile.layers.size(), 0);
  double total = 0;
  for (std::size_t i = 0; i < profile.layers.size(); ++i) {
    const int same = profile.layers[i].same_as;  // of an earlier layer
    ++times[same < 0 ? i : static_cast<std::size_t>(same)];
    total += median_of(profile.layers[i]);
  }
  std::vector<Row> rows;
  std::size_t measured = 0;
  for (std::size_t i = 0; i < profile.layers.size(); ++i) {
    if (profile.layers[i].same_as >= 0) continue;
    ++measured;
    const double found = apart(profile.layers[i], times[i], total);
    if (found > 0) rows.push_back({&profile.layers[i], found});
  }
  if (rows.empty()) return "";
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.apart > b.apart; });
  std::string names;
  for (std::size_t i = 0; i < std::min(kNamed, rows.size()); ++i)
    names += (i == 0 ? "" : ", ") + in_quotes(rows[i].layer->name);
  return fmt::format(
      "the times of {} of {} are not known, for their quartiles lie up to "
      "{:.0f} % of the median apart: {}{}",
      rows.size(), counted(measured, "measured layer"), 100 * rows.front().apart, names,
      rows.size() > kNamed ? ", ..." : "");
}

std::string noise_warning(const Profile& profile) {
  const std::string noise = noise_of(profile);
  return noise.empty() ? "" : noise + "; profile again when the machine is quiet";
}

}  // namespace ostinato
