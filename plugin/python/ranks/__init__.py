# SPDX-License-Identifier: Apache-2.0
"""What every host of the executor needs for its ranks: a watch over all of them (`watch`), which knows who
gives signs of life (`presence`), who is late (`lateness`) and where a rank is (`position`, `elsewhere`,
`frames`); a second start of all ranks (`again`); and one rank that says why they stop (`last_words`)."""
