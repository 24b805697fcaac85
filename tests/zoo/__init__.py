# SPDX-License-Identifier: Apache-2.0
"""Models that nobody wrote for ostinato, trained under drawn placements beside DeepSpeed alone: docs/zoo.md."""
