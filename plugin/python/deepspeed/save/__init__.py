# SPDX-License-Identifier: Apache-2.0
"""Checkpoints. `checkpoint` records which placement an optimizer state belongs to; `optimizer_state` and
`optimizer_files` read it for ranks that hold different layers, or `parts` of them; `seal` keeps DeepSpeed
alone from loading it into the wrong layers; `layer_files` writes files of layers as in DeepSpeed's own
partition; `universal` handles universal checkpoints of layers that several pipeline ranks hold. Without an
engine, `contents` reads a checkpoint, and `convert` writes one for DeepSpeed alone, for which it must know
DeepSpeed's `partition`. `tensor_names` says to which layer a tensor belongs, `digests` whether the files
are of one save, `lr_schedule` reads learning rate schedules under another placement."""
