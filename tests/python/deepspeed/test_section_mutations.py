# SPDX-License-Identifier: Apache-2.0
"""The "ostinato" section, and the configuration around it, changed at random: read, or refused by an
OstinatoError.

OSTINATO_SOAK_MUTATIONS=100000 OSTINATO_SOAK_SEED=7 python -m pytest
tests/python/deepspeed/test_section_mutations.py
"""

import copy
import os
from random import Random

import pytest
from ostinato.deepspeed.section.config import Section, parse_section
from ostinato.deepspeed.errors import OstinatoError
from ostinato.deepspeed.hook import section_of
from ostinato.deepspeed.section.refused_keys import REFUSED, check_keys, untried_keys

COUNT = int(os.environ.get("OSTINATO_SOAK_MUTATIONS", 4000))
SEED = int(os.environ.get("OSTINATO_SOAK_SEED", 1))

CONFIGURATION = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "betas": [0.9, 0.99]}},
    "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}},
    "torch_autocast": {"enabled": False, "dtype": "fp16"},
    "ostinato": {
        "profile": "profile.json", "search": {"time_limit": 30, "threads": 2, "exact_losses": True}, "output": "out",
        "timeout_s": 300.0, "trace": "out/trace", "require": True,
    },
}  # fmt: skip
VALUES = [
    None, True, False, 0, -1, 1, 2**70, -(2**63), 1.5, float("inf"), float("nan"), 1e308, "", "auto", "a" * 10_000, "\x1b[2J", "\ud800", "é",
    "0", "nvme", [], [[]], {}, {"enabled": True}, {"enabled": None}, {"": {}}, [{"ostinato": 1}], {"ostinato": {}}, b"bytes",
]  # fmt: skip
KEYS = [
    "ostinato",
    "Ostinato",
    "ostinato.plan",
    "ostinado",
    "plan",
    "auto",
    "search",
    "",
    "enabled",
    "stage",
    *Section.model_fields,
]
KEYS += [name for refused in REFUSED for name in refused.key.split(".")]


def sections(value: object) -> list:
    """The dictionaries and lists in it, itself included."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if isinstance(value, dict | list) else []
    return own + [section for entry in inside for section in sections(entry)]


def changed(random: Random) -> dict:
    made = copy.deepcopy(CONFIGURATION)
    for _ in range(random.randint(1, 4)):
        section = random.choice(sections(made))
        keys = list(section) if isinstance(section, dict) else list(range(len(section)))
        key = random.choice(keys) if keys else 0
        if not keys or random.random() < 0.4:
            if isinstance(section, dict):
                section[random.choice(KEYS)] = copy.deepcopy(random.choice(VALUES))
            else:
                section.append(copy.deepcopy(random.choice(VALUES)))
        elif random.random() < 0.2:
            del section[key]
        elif random.random() < 0.3 and isinstance(section, dict):
            section[random.choice(KEYS)] = section.pop(key)
        else:
            section[key] = copy.deepcopy(random.choice(VALUES))
    return made


def read(configuration: dict) -> str:
    """ "" where it would go on, else why not."""
    try:
        section, _ = section_of(configuration)
        if section is not None:
            parse_section(section, "ds_config.json")
        check_keys(configuration)
        untried_keys(configuration)
    except OstinatoError as error:
        return str(error)
    return ""


def test_it_is_read_or_refused():
    random, refused = Random(SEED), 0
    for _ in range(COUNT):
        configuration = changed(random)
        before = repr(configuration)
        why = read(configuration)
        assert repr(configuration) == before, "reading changes nothing"
        refused += bool(why)
    assert COUNT / 10 < refused < COUNT


@pytest.mark.parametrize("key", ["ostinato_", "Ostinato", "ostinatto", "my_ostinato"])
def test_nothing_like_it_is_ignored(key):
    """What was meant as the section is never silently without effect."""
    random = Random(SEED)
    for _ in range(200):
        configuration = changed(random)
        section = random.choice([s for s in sections(configuration) if isinstance(s, dict)])
        section[key] = {"plan": "plan.json"}
        inside_off = "ostinato_off" in configuration
        assert inside_off or read(configuration), configuration
