# SPDX-License-Identifier: Apache-2.0
"""How it is measured: times, operators and memory of one layer, of a stage, of a rank."""
