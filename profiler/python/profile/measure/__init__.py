# SPDX-License-Identifier: Apache-2.0
"""How it is measured: times, operators and memory of one layer, of a stage, of a rank.

`samples` is the stopwatch: one call, its time and memory, and what many calls come to. `passes` runs the
forward, backward and split backward of one layer under it, and `halves` compares whole backwards with their
halves. `operators` adds the operators of a layer, which an accelerator times by itself. `footprint` measures
what a layer holds in memory, and `kept` which outputs outlive their readers.
`optimizer` times the step, and `by_size` layers at several sizes of micro-batches. While a layer is measured,
`neighbours` keeps as many processes busy as a training would.

`rows` makes rows of a profile out of all this. `check` measures whole stages beside them; `rank_memory`
records the memory of a rank, and `owners` says who holds it.
"""
