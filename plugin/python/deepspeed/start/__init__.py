# SPDX-License-Identifier: Apache-2.0
"""From the section to an engine, in `PipelineEngine.__init__`.

`start` decides what runs: `prepare` checks that plan and configuration fit, and `install` makes the engine of the
plan. For "auto" and "check" it first lets DeepSpeed's own engine run: after its first steps, of which the first shows
what the loss reads (`loss_reads`), `first_pass` lets the profiler measure the layers (`layer_costs`), searches a plan,
and lets every rank start again (`second_start`) with its layers placed for that plan.
"""
