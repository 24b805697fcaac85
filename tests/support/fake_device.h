// SPDX-License-Identifier: Apache-2.0
#pragma once
// Devices for tests, in the place that torch keeps for devices of others (PrivateUse1): streams, and events
// that tell a clock which the test moves.
//
//   register_fake_device();
//   const c10::DeviceGuard device({kFakeDevice, 1});        // of this thread; else the first
//   fake_device_works(500);                                 // on the current stream
//   const FakeTask task = fake_device_works(2000);
//   if (comes_before(task, other)) ...                      // whatever the times are
//
// Work of a stream runs in its order, and begins when that before it has ended and every event that the
// stream was told to wait for has come. Nothing else orders it.

#include <c10/core/DeviceType.h>
#include <c10/core/Stream.h>

#include <map>
#include <utility>

#include "search/placement/placement.h"

namespace ostinato {

inline constexpr c10::DeviceType kFakeDevice = c10::DeviceType::PrivateUse1;
inline constexpr int kFakeDevices = 8;

using FakeStream = std::pair<int, c10::StreamId>;  ///< by device

/// How much of each stream's work has certainly ended (Fidge, Mattern 1988).
using FakeProgress = std::map<FakeStream, int>;

/// One piece of work.
struct FakeTask {
  FakeStream stream;
  int number = 0;       ///< of the stream's pieces, from 1
  FakeProgress before;  ///< when it begins
  Nanoseconds begin = 0;
  Nanoseconds end = 0;
};

/// Registers the device with torch, once.
void register_fake_device();

/// The thread's current stream works for so long.
FakeTask fake_device_works(Nanoseconds time);

/// All streams have come as far in time as the farthest; when that is.
Nanoseconds fake_devices_meet();

/// Does whatever is issued on the stream now begin after the task has ended?
bool comes_before(const FakeTask& task, const FakeStream& now);
/// Does the second begin after the first has ended?
bool comes_before(const FakeTask& first, const FakeTask& second);

/// Has any thread of the host seen an event that comes behind the task's end?
bool host_has_seen(const FakeTask& task);

/// Of the thread.
FakeStream fake_current_stream();

/// Events that are recorded from now on do not come, or come at once again.
void fake_device_hangs(bool from_now_on);

/// So many events are refused from now on.
void fake_device_refuses_events(int count);

}  // namespace ostinato
