# SPDX-License-Identifier: Apache-2.0
"""Each model of the zoo under each placement: equal to DeepSpeed's 1F1B, or different as rank 0 announced, or
refused by name."""

from .catalogue import MODELS
from .placements import PLACEMENTS
from .verdict import judge


def test_what_happens_is_what_was_said(case, trained, table, tmp_path):
    model, placement = case
    verdict = judge(*trained(model, PLACEMENTS[placement], tmp_path), MODELS[model].keeps_contract)
    table.setdefault(model, {})[placement] = verdict
    assert verdict, verdict.why
