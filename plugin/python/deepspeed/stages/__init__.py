# SPDX-License-Identifier: Apache-2.0
"""The layers of a rank as the stages that a plan runs.

`module` is the PipelineModule of a rank that holds several stages, one of which runs at a time; `copies` the
weights of plans that run the model in two directions; `recomputation` the forwards that run once more in a
backward; `sharding` stages that several pipeline ranks hold together; `buffers` what forwards write to, kept
and put back; `idle` what a rank without parameters trains.
"""
