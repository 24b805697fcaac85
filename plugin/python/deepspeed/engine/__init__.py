# SPDX-License-Identifier: Apache-2.0
"""A DeepSpeed engine that trains by a plan.

`engine` is the PipelineEngine; for each step it passes the micro-batches (`plan_data`) and the forwards and
backwards of the stages (`stage_passes`) to the executor in C++, which sends the tensors between stages
(`crossings` checks them), and steps the optimizer as DeepSpeed does (`clipping`: by the norm that 1F1B has).
`first_step` has what only step 1 shows of a model; `learning_rates` keeps schedules right when DeepSpeed drops
parameter groups. `adapt` watches block times, and plans again; `thawed` sees frozen layers that begin to learn.
`evaluation` runs only forwards, `batch_size` changes the number of micro-batches, `plan_checkpoints` saves and
loads. `run` holds the engine's plan and what runs and follows it (Run), and what one step changes (StepState).
"""
