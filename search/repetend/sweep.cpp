// SPDX-License-Identifier: Apache-2.0
// find() makes bytes dearer where a device holds too much, and sweeps again (sweep_beam.h). Where the price
// of all that is held exceeds that of all room and no state was cut off, nothing fits, and it gives up; it
// also does where far too much is held at first.
#include "search/repetend/sweep.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "search/repetend/list.h"
#include "search/repetend/modulo_compress.h"
#include "search/repetend/sweep_beam.h"
#include "search/repetend/sweep_steps.h"

namespace ostinato {
namespace {

using Cost = __int128;

/// Rounds of prices.
constexpr int kRounds = 6;
constexpr std::int64_t kFirstPrice = 1 << 12;
constexpr std::int64_t kLeastPrice = 1 << 4;
constexpr std::int64_t kMostPrice = 1 << 20;
/// It gives up where, at first, all holds more than the room and one part in this many.
constexpr int kHopeless = 32;
/// A price rises and falls as this power of how much of its room a device holds.
constexpr int kPower = 8;
/// Items up to which a sweep is affordable.
constexpr std::int64_t kMostSwept = 2048;

std::int64_t next_price(std::int64_t price, Bytes held, Bytes room) {
  for (int i = 0; i < kPower; ++i) {
    const __int128 next = static_cast<__int128>(price) * held / std::max<Bytes>(1, room);
    price = static_cast<std::int64_t>(std::clamp<__int128>(next, kLeastPrice, kMostPrice));
  }
  return price;
}

}  // namespace

Sweeps::Sweeps(const Instance& in) : in_(in) {
  if (!in.any_limited() || in.blocks() > kMostSwept) return;
  for (int b = 0; b < in.blocks(); ++b) {
    if (in.time(b) == 0) return;
  }
  const Compression compression = compress(in);
  const std::size_t linked = compression.bridges.size() + compression.anchors.size();
  if (compression.balanced && linked == static_cast<std::size_t>(in.blocks()))
    trees_ = std::make_unique<SweepTrees>(in, compression);
}

Sweeps::~Sweeps() = default;

bool Sweeps::apply(int unroll) const {
  return trees_ && static_cast<std::int64_t>(in_.blocks()) * unroll <= kMostSwept;
}

Nanoseconds Sweeps::grid() const { return trees_->grid; }

std::optional<Repetend> Sweeps::find(int unroll, Nanoseconds period, SweepEffort& effort) const {
  SweepBeam beam(in_, *trees_, unroll, period, effort);
  std::vector<std::int64_t> price(in_.devices(), kFirstPrice);
  for (int round = 0; round < kRounds && effort.work > 0 && !(effort.stop && effort.stop()); ++round) {
    std::optional<std::vector<Nanoseconds>> start = beam.run(price);
    if (!start && beam.cut_off()) continue;
    if (!start) return std::nullopt;
    Repetend r;
    r.period = period;
    r.unroll = unroll;
    r.start = std::move(*start);
    number_in_order(in_, r);
    const std::vector<Bytes> held = held_by(in_, r);
    bool fits = true;
    Cost room = 0, over = 0;  // by how much the price of all that is held exceeds that of all room
    for (int d = 0; d < in_.devices(); ++d) {
      if (!in_.limited(d)) continue;
      const Bytes more = held[d] - in_.room(d);
      fits = fits && more <= 0;
      room += static_cast<Cost>(in_.room(d)) * price[d];
      over += static_cast<Cost>(more) * price[d];
      price[d] = next_price(price[d], held[d], in_.room(d));
    }
    if (fits) return r;
    const bool hopeless = round == 0 && over > room / kHopeless;
    if (hopeless || (over > 0 && !beam.cut_off())) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace ostinato
