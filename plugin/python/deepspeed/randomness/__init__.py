# SPDX-License-Identifier: Apache-2.0
"""Random numbers as state: `random_state` saves and restores every generator of a process, `generators` jumps
in torch's by so many numbers, `draws` learns which layers draw, and how many. What is done about it under a
plan is in `equal`."""
