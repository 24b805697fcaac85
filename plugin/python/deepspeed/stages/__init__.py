# SPDX-License-Identifier: Apache-2.0
"""The layers of a rank as the stages that a plan runs.

`module` is the PipelineModule of a rank that holds several stages, one of which runs at a time; `copies` the
weights of plans that run the model in two directions; `recomputation` forwards that a backward runs again;
`sharding` stages that several pipeline ranks share; `borders` treats tensors as 1F1B's transfers do; `tied_sums`
adds gradients of tied layers that share a rank; `loss` stands in for the loss; `idle` is what a rank without
parameters trains.
"""
