// SPDX-License-Identifier: Apache-2.0
#pragma once
// An input of a saved program, described in words: "8x128:int64:50257" is 8 by 128 whole numbers below 50257.
//
//   SHAPE[:TYPE[:BELOW]]
//   SHAPE    sizes joined by x ("scalar" for none)
//   TYPE     float32 (the default), float64, float16, bfloat16, int64, int32, bool
//   BELOW    bound of whole numbers; else all are 0
//
// Floating point values are drawn from a normal distribution with a fixed seed: the same words give the same
// tensor.

#include <ATen/core/Tensor.h>

#include <string>

namespace ostinato {

/// Throws std::invalid_argument: what is wrong with the words, and what would be right.
at::Tensor sample_input(const std::string& words);

}  // namespace ostinato
