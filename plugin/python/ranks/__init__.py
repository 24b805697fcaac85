# SPDX-License-Identifier: Apache-2.0
"""What every host of the executor needs for its ranks: process groups for transfers (groups), a watch over all
ranks (watch), a second start of all ranks (again), and one rank that says why they stop (last_words)."""
