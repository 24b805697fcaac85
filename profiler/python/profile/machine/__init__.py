# SPDX-License-Identifier: Apache-2.0
"""The machine that a model is profiled on: its devices, and the transfers between the ranks of a launch."""
