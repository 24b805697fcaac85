# SPDX-License-Identifier: Apache-2.0
"""Random numbers as state: `random_state` saves and restores every generator of a process, `generators`
advances torch's by a count, `draws` learns which layers draw, and how many. `equal` has what a plan does about
it."""
