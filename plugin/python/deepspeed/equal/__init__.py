# SPDX-License-Identifier: Apache-2.0
"""Does a plan compute what 1F1B computes? One half makes it so, the other measures it.

`streams` gives every layer the random numbers that 1F1B draws, under any placement, and `random_numbers`
decides where that is possible, and says where it is not. `recorder` takes `records` of the first steps of a
training (digests, norms and sketches of gradients, weights and buffers), under 1F1B in the first start and under
the plan in the second; `compared_steps` makes the `comparison`, and says what it found: equal bit for bit, equal
up to rounding, or the first step, layer and tensor that differ.
"""
