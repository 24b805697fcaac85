# SPDX-License-Identifier: Apache-2.0
"""The machine that a model is profiled on.

`device` has the clock, the memory and the name of a device. `transfers` measures what a message between two
ranks costs, over a process group that `wire` makes; `launched` divides that among the ranks of a launch.
`block_time` measures what a block costs beside its layers. `freed_memory` keeps glibc from giving memory back
between micro-batches, as a training does; `counted` says whether torch counts a device's memory.
"""
