# SPDX-License-Identifier: Apache-2.0
"""Runs a training script up to its first training step, and takes the model that it trains."""
