# SPDX-License-Identifier: Apache-2.0
"""What a run was told: the "ostinato" section, the plan that it names, and what cannot go with it.

In the order in which a run meets them: `config` parses the section, with file and key in every message;
`plans` reads the two files of a plan, lowers it and holds what a rank needs to know of it; `search` names the
two files that a search in the run leaves, and finds those of a run before; `refused_keys` and `refusals` say
what of the DeepSpeed configuration, the model and the engine a plan cannot be combined with; `agreement`
tells every rank what all ranks hold, so that they stop together.

Nothing here changes a model or an engine.
"""

VARIABLE = (
    "OSTINATO_PLAN"  # environment: a plan.json, a ds_config.json with the section, or the section as JSON
)
LEFT = "section.json"  # of a first start, where a plan is to run: a script may read its configuration after it has made its model
