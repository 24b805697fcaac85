# SPDX-License-Identifier: Apache-2.0
"""What every host of the executor needs of its ranks: process groups for transfers (groups), and a watch over them (watch)."""
