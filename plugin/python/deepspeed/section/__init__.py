# SPDX-License-Identifier: Apache-2.0
"""What a run was told: the "ostinato" section, the plan that it names, and what does not work with a plan.

In the order in which a run uses them: `config` parses the section, with file and key in every message;
`plans` reads the two files of a plan, lowers it and keeps what a rank needs to know of it; `search` writes
the two files of a searched plan, and `kept` finds those of an earlier run, with what it left beside them
(`verdict`); `refused_keys` and `refusals` say what in the DeepSpeed configuration, the model and the engine
does not work with a plan; `agreement` tells every rank what all ranks hold, so that they stop together.

Nothing here changes a model or an engine.
"""

from collections import Counter

MADE = "_ostinato_made"  # an attribute of models that PipelineModule.__init__() has made: where, and how many were made there before
UNPLANNED = "unplanned.json"  # left by a first start: MADE of the models that had an engine without a section
VARIABLE = (
    "OSTINATO_PLAN"  # environment: a plan.json, a ds_config.json with the section, or the section as JSON
)
SECTION_FILE = "section.json"  # left by a first start that hands over a plan: a script may read its configuration after making its model

# Of this process, by where they were made: a script may make fewer or more of them in its second start.
models: Counter[str] = Counter()
unplanned: list[str] = []  # MADE of those that have an engine without a section
