// SPDX-License-Identifier: Apache-2.0
#include "plugin/executor/tensor_spec.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace ostinato {
namespace {

at::Tensor counted(at::IntArrayRef sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kFloat).view(sizes);
}

/// Its bytes alone go over, into memory of the same sizes.
at::Tensor sent(const at::Tensor& tensor) {
  const Order order = order_of(tensor);
  const at::Tensor wire = laid_out(tensor, order);
  EXPECT_TRUE(wire.is_contiguous());
  at::Tensor there = at::empty(tensor.sizes(), tensor.options());
  there.view(-1).copy_(wire.view(-1));
  return as_sent(there, order);
}

TEST(TensorSpec, ATensorWithoutGapsArrivesAsItLies) {
  const at::Tensor image = counted({2, 3, 4, 5});
  for (const at::Tensor& tensor :
       {image, image.transpose(0, 2), image.permute({3, 0, 2, 1}), image.select(0, 1).permute({2, 0, 1}),
        image.contiguous(at::MemoryFormat::ChannelsLast), counted({6}), counted({})}) {
    const at::Tensor there = sent(tensor);
    EXPECT_TRUE(at::equal(there, tensor));
    EXPECT_EQ(there.strides(), tensor.strides());
    EXPECT_TRUE(laid_out(tensor, order_of(tensor)).is_alias_of(tensor));  // nothing is copied
  }
}

TEST(TensorSpec, WithGapsOrRepeatsItArrivesContiguous) {
  const at::Tensor rows = counted({4, 6});
  for (const at::Tensor& tensor :
       {rows.slice(1, 0, 3), rows.t().slice(0, 1, 5, 2), rows.select(1, 2), counted({4, 1}).expand({4, 3})}) {
    EXPECT_TRUE(order_of(tensor).empty());
    const at::Tensor there = sent(tensor);
    EXPECT_TRUE(at::equal(there, tensor));
    EXPECT_TRUE(there.is_contiguous());
  }
}

TEST(TensorSpec, DimensionsOfOneKeepTheirStrides) {
  const std::vector<std::vector<std::int64_t>> shapes = {
      {2, 16, 1, 1}, {2, 1, 4, 5}, {1, 1, 1, 1}, {1, 3, 4, 1}};
  for (const auto& sizes : shapes) {
    for (const auto format : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::Contiguous}) {
      const at::Tensor tensor = at::empty(sizes, at::TensorOptions().memory_format(format)).fill_(1);
      const at::Tensor there = sent(tensor);
      EXPECT_TRUE(at::equal(there, tensor));
      EXPECT_EQ(there.strides(), tensor.strides());
      EXPECT_TRUE(format == at::MemoryFormat::ChannelsLast || order_of(tensor).empty());
    }
  }
}

TEST(TensorSpec, DimensionsOfOneAndEmptyTensorsHaveAnyOrder) {
  for (const at::Tensor& tensor : {counted({3, 1, 4}).permute({1, 2, 0}), counted({1, 5}).t(),
                                   at::empty({0, 3}).t(), counted({3, 4}).t().unsqueeze(1)}) {
    const at::Tensor there = sent(tensor);
    EXPECT_TRUE(at::equal(there, tensor));
    EXPECT_EQ(there.is_contiguous(), tensor.is_contiguous());
  }
}

TEST(TensorSpec, AnOrderOfAnotherNumberOfDimensionsIsNone) {
  const Order order = order_of(counted({2, 3}).t());
  const at::Tensor cube = counted({2, 3, 4});
  EXPECT_TRUE(laid_out(cube, order).is_same(cube) || at::equal(laid_out(cube, order), cube));
  EXPECT_EQ(as_sent(cube, order).strides(), cube.strides());
}

TEST(TensorSpec, WhatWasAnnouncedWithAGradientMayComeWithout) {
  const at::Tensor plain = at::ones({2});
  const at::Tensor learns = at::ones({2}).requires_grad_();
  EXPECT_TRUE(matches(describe({learns}), {plain}));  // a layer that was skipped
  EXPECT_FALSE(matches(describe({plain}), {learns}));
}

TEST(TensorSpec, AConjugateIsWrittenOut) {
  const at::Tensor numbers = at::complex(counted({2, 3}), counted({2, 3}) + 1);
  EXPECT_TRUE(at::equal(sent(numbers.t().conj()), numbers.t().conj().resolve_conj()));
}

TEST(TensorSpec, AnAnnouncementKeepsWhatItSays) {
  const at::Tensor weight = counted({2, 3}).requires_grad_();
  const MessageSpec spec = describe({weight * 2, at::Tensor(), (weight * 2).t(), at::ones({3}, at::kLong)});
  EXPECT_EQ(spec[2].order, (Order{1, 0}));
  EXPECT_EQ(decode(encode(spec)), spec);
  EXPECT_TRUE(
      matches(spec, {weight * 3, at::Tensor(), at::ones({3, 2}).requires_grad_(), at::ones({3}, at::kLong)}));
  for (const TensorSpec& gradient : gradient_of(spec)) EXPECT_TRUE(gradient.order.empty());
}

}  // namespace
}  // namespace ostinato
