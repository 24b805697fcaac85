# SPDX-License-Identifier: Apache-2.0
"""Places layers as the plan asks before the script sees its model.

At the end of `PipelineModule.__init__` `placing` learns the plan (from `enable()`, OSTINATO_PLAN or
--deepspeed_config), checks with all ranks that it was made for this model (`model_identity`, `experts`), and
lays the layers out: `rebuild` moves one layer at a time from the rank where DeepSpeed's partition built it to
the rank of the plan, `built` has the random states that it was built from, `transfer` sends a layer's tensors
there, `tied` says where modules go that several layers use, and which layers must stay together.

From then on nothing moves: a script's later changes apply to layers in their final place. Weights that it draws
there are set to those that it drew in the first start, where there was one (`first_weights`). At initialize()
the rank that computes the loss gets the loss's parameters from the rank that does in 1F1B (`loss_state`).
"""
