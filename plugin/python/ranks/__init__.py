# SPDX-License-Identifier: Apache-2.0
"""What every host of the executor needs of its ranks: process groups for transfers (groups), a watch over
them (watch), a second start of all of them (again), and one rank that says why they stop (last_words)."""
