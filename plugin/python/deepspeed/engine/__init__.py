# SPDX-License-Identifier: Apache-2.0
"""A DeepSpeed engine that trains by a plan.

`engine` is the PipelineEngine; for each step it hands the micro-batches (`plan_data`), the forwards and
backwards of the stages (`stage_passes`) and what crosses from stage to stage (`crossings`) to the executor in
C++, and steps the optimizer as DeepSpeed does (`clipping`: by the norm that 1F1B has). `adapt` follows what
blocks take, and plans again. `evaluation` runs forwards alone, `plan_checkpoints` saves and loads, `run`
holds what an engine knows of its plan.
"""
