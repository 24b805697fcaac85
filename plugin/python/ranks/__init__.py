# SPDX-License-Identifier: Apache-2.0
"""What every framework that runs the executor needs for its ranks.

A watch over all of them (`watch`) knows who gives signs of life (`presence`), who is late (`lateness`), where a
rank is (`position`, `elsewhere`, `frames`) and whether the launcher is there (`launcher`); before it begins,
`arrivals` names ranks that are missing, and `starting` watches the rest. `reports` exchanges what all must know
before a collective, `deadline` ends calls that have no time-out, and one rank says why they stop (`last_words`).
`again` is a second start of all ranks. `cores` says which ranks share cores. Below these: `threads` beside the
training's, `gloo_threads`, which end last, and `connection` and `names` in the store."""
