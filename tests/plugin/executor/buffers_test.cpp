// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/buffers.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "plugin/executor/error.h"
#include "plugin/executor/handed_on.h"
#include "tests/support/fake_memory.h"

namespace ostinato {
namespace {

const TensorSpec kSpec{.present = true, .requires_grad = false, .dtype = at::kFloat, .sizes = {2, 3}};

TEST(Buffers, OneShapeAndTypeIsReused) {
  Meter meter;
  BufferPool pool(at::kCPU, meter);
  const void* data = nullptr;
  {
    const Buffer buffer = pool.take(kSpec);
    data = buffer.tensor().const_data_ptr();
  }
  const Buffer again = pool.take(kSpec);
  EXPECT_EQ(again.tensor().const_data_ptr(), data);
  const Buffer second = pool.take(kSpec);
  EXPECT_NE(second.tensor().const_data_ptr(), data);
  EXPECT_EQ(meter.now(), 48);
}

// Who has handed on what lay there compares versions still when it is used again.
TEST(Buffers, CountChangesAnewWhenTheyAreReused) {
  Meter meter;
  BufferPool pool(at::kCPU, meter);
  HandedOn handed;
  {
    const Buffer buffer = pool.take(kSpec);
    buffer.tensor().fill_(1);
    handed = HandedOn({buffer.tensor()});
  }
  pool.take(kSpec).tensor().fill_(2);
  EXPECT_EQ(meter.peak(), kSpec.bytes());
  EXPECT_NO_THROW(handed.expect_unchanged({}));
}

TEST(Buffers, TakenInInferenceModeServesOutsideOfIt) {
  Meter meter;
  BufferPool pool(at::kCPU, meter);
  const c10::InferenceMode mode;
  EXPECT_FALSE(pool.take(kSpec).tensor().is_inference());
  EXPECT_TRUE(c10::InferenceMode::is_enabled());
}

TEST(Buffers, AnotherTypeIsAnotherBuffer) {
  Meter meter;
  BufferPool pool(at::kCPU, meter);
  { const Buffer buffer = pool.take(kSpec); }
  const Buffer other =
      pool.take({.present = true, .requires_grad = false, .dtype = at::kLong, .sizes = {2, 3}});
  EXPECT_EQ(other.tensor().scalar_type(), at::kLong);
  EXPECT_EQ(meter.peak(), 24 + 48);
  pool.clear();
  EXPECT_EQ(meter.now(), 48);
}

TEST(Buffers, WhereShapesChangeNoMoreIsHeldThanIsInUse) {
  Meter meter;
  BufferPool pool(at::kCPU, meter);
  pool.shapes_change(true);
  for (std::int64_t length = 1; length < 9; ++length)
    const Buffer buffer =
        pool.take({.present = true, .requires_grad = false, .dtype = at::kFloat, .sizes = {length, 3}});
  EXPECT_EQ(meter.peak(), 8 * 12);
  const void* data =
      pool.take({.present = true, .requires_grad = false, .dtype = at::kFloat, .sizes = {8, 3}})
          .tensor()
          .const_data_ptr();
  pool.shapes_change(false);
  const Buffer other = pool.take(kSpec);
  EXPECT_EQ(meter.now(), 8 * 12 + 24);
  const Buffer again =
      pool.take({.present = true, .requires_grad = false, .dtype = at::kFloat, .sizes = {8, 3}});
  EXPECT_EQ(again.tensor().const_data_ptr(), data);
}

TEST(Buffers, WhatSomebodyStillHoldsIsNotReused) {
  Meter meter;
  BufferPool pool(at::kCPU, meter);
  at::Tensor view;
  {
    const Buffer buffer = pool.take(kSpec);
    view = buffer.tensor().select(0, 1);
    view.fill_(5);
  }
  EXPECT_EQ(meter.now(), 0);  // it belongs to whoever holds it
  const Buffer next = pool.take(kSpec);
  next.tensor().zero_();
  EXPECT_TRUE(at::equal(view, at::full({3}, 5.0)));
}

class DeviceBuffers : public ::testing::Test {
 protected:
  DeviceBuffers() { register_fake_device(); }

  Meter meter;
  BufferPool pool{at::Device(kFakeDevice, 0), meter};
};

TEST_F(DeviceBuffers, OneThatTheLastComputeGaveBackIsNotTakenBeforeTheNext) {
  const auto data_of_next = [&] { return pool.take(kSpec).tensor().const_data_ptr(); };
  const void* first = data_of_next();
  const void* second = data_of_next();
  EXPECT_NE(second, first);
  pool.next_compute();
  EXPECT_EQ(data_of_next(), first);
  EXPECT_EQ(data_of_next(), second);
  EXPECT_EQ(meter.now(), 48);
}

TEST_F(DeviceBuffers, ItIsFreeWhenItsLastReaderHasEnded) {
  FakeTask reader;
  {
    const Buffer buffer = pool.take(kSpec);
    reader = fake_device_works(100);
  }
  pool.next_compute();
  const Buffer again = pool.take(kSpec);
  const c10::Stream other = c10::impl::VirtualGuardImpl(kFakeDevice).getNewStream({kFakeDevice, 0});
  const FakeStream key{other.device_index(), other.id()};
  EXPECT_FALSE(comes_before(reader, key));
  again.is_free()->block(other);
  EXPECT_TRUE(comes_before(reader, key));
}

TEST_F(DeviceBuffers, OneThatTheDeviceCannotMarkIsLetGo) {
  {
    const Buffer buffer = pool.take(kSpec);
    fake_device_refuses_events(1);
  }
  EXPECT_EQ(meter.now(), 0);
}

TEST(TensorSpec, AnnouncementReadsBack) {
  const MessageSpec spec = describe({at::ones({2, 3}).requires_grad_(true), at::Tensor(),
                                     at::ones({}, at::kBool), at::empty({0, 4}, at::kBFloat16)});
  EXPECT_EQ(decode(encode(spec)), spec);
  EXPECT_EQ(to_string(spec), "(Float[2, 3] with gradient, None, Bool[], BFloat16[0, 4])");
  EXPECT_EQ(to_string(gradient_of(spec)), "(Float[2, 3], None, None, None)");
}

TEST(TensorSpec, MatchesLooksAtEverything) {
  const at::Tensor tensor = at::ones({2, 3});
  const MessageSpec spec = describe({tensor});
  EXPECT_TRUE(matches(spec, {at::zeros({2, 3})}));
  EXPECT_FALSE(matches(spec, {at::ones({3, 2})}));
  EXPECT_FALSE(matches(spec, {tensor.to(at::kDouble)}));
  EXPECT_FALSE(matches(spec, {at::Tensor()}));
  EXPECT_FALSE(matches(spec, {tensor, tensor}));
  EXPECT_FALSE(matches(spec, {at::ones({2, 3}).requires_grad_(true)}));
}

TEST(TensorSpec, TooManyOutputsAreRefused) {
  EXPECT_THROW(encode(describe(std::vector<at::Tensor>(400, at::ones({1, 1})))), ExecutionError);
}

}  // namespace
}  // namespace ostinato
