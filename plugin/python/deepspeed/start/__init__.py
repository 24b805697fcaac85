# SPDX-License-Identifier: Apache-2.0
"""From the section to an engine, in `PipelineEngine.__init__`.

`start` checks that plan and configuration fit and makes the engine of the plan, or, for "auto", "profile" and
"check", lets DeepSpeed's own engine run: after its first steps `first_pass` has the profiler measure its
layers (`layer_costs`), searches a plan, and has every rank start again (`second_start`) with layers laid out
by that plan.
"""
