// SPDX-License-Identifier: Apache-2.0
#include "profiler/cupti/records.h"

#include <algorithm>
#include <cstring>

#include "profiler/cupti/launches.h"

namespace ostinato::cupti {
namespace {

/// Every record starts with its kind, and is a multiple of 8 bytes long.
constexpr std::size_t kRecordAlignment = 8;

std::uint32_t kind_of(const std::uint8_t* record) {
  std::uint32_t kind = 0;
  std::memcpy(&kind, record, sizeof kind);
  return kind;
}

}  // namespace

void RecordReader::read(std::uint8_t* data, std::size_t valid) {
  std::uint8_t* last = nullptr;
  void* next = nullptr;
  abi::Result result = abi::kSuccess;
  while ((result = call_.get_next_record(data, valid, &next)) == abi::kSuccess && next) {
    last = static_cast<std::uint8_t*>(next);
    ++records_.seen;
    read_record(last, valid - static_cast<std::size_t>(last - data));
  }
  // CUPTI ends a buffer that was cut inside a record like a whole one, so see what follows the last record:
  // nothing, or zeros, which are no kind of record (valid bytes may be rounded up), or a piece of another.
  const std::size_t read = last ? static_cast<std::size_t>(last - data) : 0;
  const std::size_t end = last ? read + record_size(last, valid - read) : 0;
  const bool whole = std::all_of(data + end, data + valid, [](std::uint8_t byte) { return byte == 0; });
  // For zeros each release has its own error.
  const bool ended = result == abi::kMaxLimitReached || end < valid;
  if (!ended || !whole) ++records_.cut_buffers;
}

/// The smallest number of valid bytes in which CUPTI accepts the record: its size in this library.
std::size_t RecordReader::record_size(std::uint8_t* record, std::size_t left) {
  const std::uint32_t kind = kind_of(record);
  if (kind < sizes_.size() && sizes_[kind] != 0) return sizes_[kind];
  std::size_t low = 1;
  std::size_t high = left / kRecordAlignment;
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    void* first = nullptr;
    if (call_.get_next_record(record, middle * kRecordAlignment, &first) == abi::kSuccess) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  if (kind < sizes_.size()) sizes_[kind] = low * kRecordAlignment;
  return low * kRecordAlignment;
}

template <typename Entry>
void RecordReader::keep(std::vector<Entry>* entries, const Entry& entry) {
  const std::size_t kept = records_.activities.size() + records_.links.size() + records_.launches.size();
  if (kept < limit_) {
    entries->push_back(entry);
  } else {
    ++records_.beyond_limit;
  }
}

/// Copies the head out, since records are packed; false where this library's record is shorter than what we
/// read.
template <typename Head>
bool RecordReader::copy_head(const std::uint8_t* record, std::size_t left, Head* head) {
  if (left < sizeof(Head)) {
    ++records_.unknown;
    return false;
  }
  std::memcpy(head, record, sizeof(Head));
  return true;
}

template <typename Head>
void RecordReader::read_activity(const std::uint8_t* record, std::size_t left, ActivityKind kind) {
  Head head;
  if (!copy_head(record, left, &head)) return;
  keep(&records_.activities, Activity{.start = static_cast<Nanoseconds>(head.start),
                                      .end = static_cast<Nanoseconds>(head.end),
                                      .correlation = head.correlation,
                                      .kind = kind});
}

void RecordReader::read_api(const std::uint8_t* record, std::size_t left, bool driver) {
  abi::ApiHead api;
  if (!copy_head(record, left, &api) || api.return_value != 0 || !is_launch(driver, api.function)) return;
  keep(&records_.launches, Launch{.correlation = api.correlation,
                                  .thread = api.thread,
                                  .start = static_cast<Nanoseconds>(api.start),
                                  .end = static_cast<Nanoseconds>(api.end),
                                  .driver = driver});
}

void RecordReader::read_external(const std::uint8_t* record, std::size_t left) {
  abi::ExternalCorrelationHead external;
  if (!copy_head(record, left, &external) || external.external_kind != abi::kCustom2) return;
  keep(&records_.links, Link{external.correlation, external.external_id});
}

void RecordReader::read_record(const std::uint8_t* record, std::size_t left) {
  switch (static_cast<abi::RecordKind>(kind_of(record))) {
    case abi::RecordKind::kernel:
      return read_activity<abi::KernelHead>(record, left, ActivityKind::kernel);
    case abi::RecordKind::memcpy:
      return read_activity<abi::MemcpyHead>(record, left, ActivityKind::memcpy);
    case abi::RecordKind::memset:
      return read_activity<abi::MemcpyHead>(record, left, ActivityKind::memset);
    case abi::RecordKind::memcpy_peer:
      return read_activity<abi::MemcpyPeerHead>(record, left, ActivityKind::memcpy);
    case abi::RecordKind::runtime:
      return read_api(record, left, false);
    case abi::RecordKind::driver:
      return read_api(record, left, true);
    case abi::RecordKind::external_correlation:
      return read_external(record, left);
  }
  ++records_.unknown;
}

}  // namespace ostinato::cupti
