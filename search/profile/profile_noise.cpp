// SPDX-License-Identifier: Apache-2.0
#include "search/profile/profile_noise.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "search/files/counted.h"
#include "search/files/value.h"

namespace ostinato {
namespace {

constexpr double kUnknown = 0.5;   // of the median
constexpr double kMatters = 0.01;  // of a micro-batch
constexpr double kMissing = 0.05;  // of a whole backward
constexpr double kTrusted = 0.05;  // of a micro-batch
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

/// Layers that were measured, and how many of a micro-batch each stands for; 0: another one stands for it.
std::vector<double> times_of(const Profile& profile) {
  std::vector<double> times(profile.layers.size(), 0);
  for (std::size_t i = 0; i < profile.layers.size(); ++i) {
    const int same = profile.layers[i].same_as;  // of an earlier layer
    ++times[same < 0 ? i : static_cast<std::size_t>(same)];
  }
  return times;
}

double total_of(const Profile& profile) {
  return std::accumulate(profile.layers.begin(), profile.layers.end(), 0.0,
                         [](double sum, const LayerCost& layer) { return sum + median_of(layer); });
}

std::string names_of(const std::vector<Row>& rows) {
  std::string names;
  for (std::size_t i = 0; i < std::min(kNamed, rows.size()); ++i)
    names += (i == 0 ? "" : ", ") + in_quotes(rows[i].layer->name);
  return names + (rows.size() > kNamed ? ", ..." : "");
}

/// The measured layers for which `of` gives a share above 0, largest first.
template <class Of>
std::vector<Row> rows_of(const Profile& profile, Of of) {
  const std::vector<double> times = times_of(profile);
  std::vector<Row> rows;
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (profile.layers[i].same_as >= 0) continue;
    const double share = of(profile.layers[i], times[i]);
    if (share > 0) rows.push_back({&profile.layers[i], share});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.apart > b.apart; });
  return rows;
}

std::ptrdiff_t measured_of(const Profile& profile) {
  return std::count_if(profile.layers.begin(), profile.layers.end(),
                       [](const LayerCost& layer) { return layer.same_as < 0; });
}

std::string scattered(const Profile& profile) {
  const double total = total_of(profile);
  const std::vector<Row> rows =
      rows_of(profile, [&](const LayerCost& layer, double times) { return apart(layer, times, total); });
  if (rows.empty()) return "";
  return fmt::format(
      "the times of {} of {} are uncertain: their quartiles differ by up to {:.0f} % of the median: {}",
      rows.size(), counted(measured_of(profile), "measured layer"), 100 * rows.front().apart, names_of(rows));
}

/// By what share of the whole backward its halves take less; 0: not by so much that noise must be why.
double missing(const LayerCost& layer) {
  const auto whole = static_cast<double>(layer.backward.median);
  const auto halves = static_cast<double>(layer.backward_input.median + layer.backward_weight.median);
  return layer.halves() && whole - halves > kMissing * whole ? 1 - halves / whole : 0;
}

std::string not_adding_up(const Profile& profile) {
  double lost = 0;
  const std::vector<Row> rows = rows_of(profile, [&](const LayerCost& layer, double times) {
    const double share = missing(layer);
    lost += times * share * static_cast<double>(layer.backward.median);
    return share;
  });
  if (lost <= kMatters * total_of(profile)) return "";
  return fmt::format(
      "the backward halves of {} of {} take up to {:.0f} % less than the whole backward, so the whole counts "
      "for both: {}",
      rows.size(), counted(measured_of(profile), "measured layer"), 100 * rows.front().apart, names_of(rows));
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
  const std::string times = scattered(profile), halves = not_adding_up(profile);
  return times + (times.empty() || halves.empty() ? "" : "; ") + halves;
}

std::string trust_of(const Profile& profile) {
  const double unknown = unknown_share(profile);
  if (unknown <= kTrusted)
    return noise_of(profile).empty() ? "" : "some of the profile's times are uncertain";
  return fmt::format("half of the profile's samples are off by up to {:.1f} %", 100 * unknown);
}

std::string noise_warning(const Profile& profile) {
  const std::string noise = noise_of(profile);
  return noise.empty() ? "" : noise + "; profile again on an idle machine";
}

}  // namespace ostinato
