# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: which placement an optimizer's state is of (`checkpoint`), how ranks that hold other layers read it (`optimizer_state`), files
of layers as DeepSpeed's own partition names them (`layer_files`), and universal checkpoints of layers that several pipeline ranks hold
(`universal`)."""
