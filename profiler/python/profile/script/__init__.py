# SPDX-License-Identifier: Apache-2.0
"""Runs a training script up to its first training step, and takes the model that it trains.

`first_step` runs the script in a `world` where only rank 0 exists, and restarts it with as many ranks as it
asks for. `engine` takes DeepSpeed's engine over at its first training step; `changed_layers` has the layers
as the script has changed them.
"""
