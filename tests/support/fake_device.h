#pragma once
// A device for tests, in the place that torch keeps for devices of others (PrivateUse1): one stream, and
// events that tell a clock which the test moves.

#include <c10/core/DeviceType.h>

#include "search/placement/placement.h"

namespace ostinato {

inline constexpr c10::DeviceType kFakeDevice = c10::DeviceType::PrivateUse1;

/// Registers the device with torch, once.
void register_fake_device();

/// The device works for so long.
void fake_device_works(Nanoseconds time);

/// Events that are recorded from now on do not come, or come at once again.
void fake_device_hangs(bool from_now_on);

/// So many events are refused from now on.
void fake_device_refuses_events(int count);

}  // namespace ostinato
