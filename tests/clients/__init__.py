# SPDX-License-Identifier: Apache-2.0
"""Scripts of people who have never heard of ostinato, run as they are: alone, under a plan, and under "auto"."""
