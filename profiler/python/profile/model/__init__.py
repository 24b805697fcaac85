# SPDX-License-Identifier: Apache-2.0
"""What is profiled: the layers of a model, or the operators of any module, one row after the other. Nothing
is measured here.

A `job` says what to profile. `build` builds the layers of a DeepSpeed model one at a time, each with its real
input; `graph` has the operators of an nn.Module from torch.export (`inline`, `faithful`), and `program` the
submodules of a saved TorchScript program (`archives`, `made_up`), both by way of `steps`. All three make a
`chain`: distinct layers (`layer`), and rows that repeat them. `identity` and `alike` say which layers are the
same, `wanted` which outputs get a gradient, `outputs` which cannot pass to another stage, `shared` which
layers hold the same weights, `shardable` which layers can be sharded, `lanes` which run on a lane, `tensors`
what tensors a value holds. `model_digest` names the model. `stage` builds several layers as one.
"""
