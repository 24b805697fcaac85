# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: which placement an optimizer's state is of (`checkpoint`), how ranks that hold other layers
read it (`optimizer_state`, of `optimizer_files`), what keeps DeepSpeed alone from taking it for that of other
layers (`seal`), files of layers as DeepSpeed's own partition names them (`layer_files`), and universal
checkpoints of layers that several pipeline ranks hold (`universal`). Without an engine: what lies in one
(`contents`), and the same for DeepSpeed alone (`convert`), which has to know its `partition`."""
