# SPDX-License-Identifier: Apache-2.0
"""The keys that this DeepSpeed reads from a configuration, and what docs/deepspeed-keys.toml decides of them.

python -m support.deepspeed_keys > docs/deepspeed-keys.md      # in tests/python: the page, from the data
"""

import ast
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "docs/deepspeed-keys.toml"

# Attributes of DeepSpeedConfig that hold what became of a section of another name.
SECTIONS = {
    "zero_config": "zero_optimization",
    "float16_config": "fp16",
    "bfloat16_config": "bf16",
    "activation_checkpointing_config": "activation_checkpointing",
    "monitor_config": "",
    "flops_profiler_config": "flops_profiler",
    "autotuning_config": "autotuning",
    "hybrid_engine": "hybrid_engine",
    "compile_config": "compile",
    "timers_config": "timers.throughput",
    "tensor_parallel_config": "tensor_parallel",
    "expert_parallel_config": "expert_parallel",
    "aio_config": "aio",
    "checkpoint_config": "checkpoint",
    "pipeline": "pipeline",
    "weight_quantization_config": "weight_quantization",
}

# With these in it, a configuration makes DeepSpeed read what is inside sections that are otherwise absent.
OPENED = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "Adam", "params": {}},
    "scheduler": {"type": "WarmupLR", "params": {}},
    "torch_autocast": {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []},
    "timers": {"throughput": {}},
    "weight_quantization": {},
    "data_efficiency": {
        "data_sampling": {"curriculum_learning": {}, "dynamic_batching": {}},
        "data_routing": {"random_ltd": {}},
    },
}


class Read(dict):
    """A section that notes which keys are asked for, in itself and in sections inside; `path` is its own name
    with a dot behind it."""

    def __init__(self, values: dict, path: str, keys: set[str]):
        inside = {
            name: Read(value, f"{path}{name}.", keys)
            for name, value in values.items()
            if isinstance(value, dict)
        }
        super().__init__({**values, **inside})
        self.path, self.seen = path, keys

    def get(self, key, default=None):
        self.seen.add(self.path + key)
        return super().get(key, Read({}, f"{self.path}{key}.", self.seen) if default == {} else default)

    def __getitem__(self, key):
        self.seen.add(self.path + key)
        return super().__getitem__(key)

    def __contains__(self, key) -> bool:
        self.seen.add(self.path + key)
        return super().__contains__(key)

    def keys(self):
        return Names(self)

    def __copy__(self):
        return Read(dict(self.items()), self.path, self.seen)


class Names:
    """What `key in section.keys()` asks."""

    def __init__(self, section: Read):
        self.section = section

    def __contains__(self, key) -> bool:
        return key in self.section

    def __iter__(self) -> Iterator[str]:
        return iter(dict.keys(self.section))


def keys_of_deepspeed() -> set[str]:
    """With dots between sections; an optimizer or scheduler by its type ("optimizer.type.adam")."""
    from deepspeed.runtime import config, lr_schedules

    seen: set[str] = set()
    made = config.DeepSpeedConfig(Read(OPENED, "", seen))
    found = {key for key in seen if not key.startswith(("optimizer.params.", "scheduler.params."))}
    for name, value in vars(made).items():
        if name in SECTIONS:
            section = SECTIONS[name]
            found |= {f"{section}.{key}" if section else key for key in _fields(value)}
    found |= {f"optimizer.type.{name}" for name in config.DEEPSPEED_OPTIMIZERS}
    found |= {f"scheduler.type.{name}" for name in lr_schedules.VALID_LR_SCHEDULES}
    return (
        found
        | _asked_by_initialize()
        | _asked_by_pipelines()
        | {f"comms_logger.{name}" for name in _comms_logger()}
    )


def _fields(value: object) -> set[str]:
    """Keys of a section that became an object: of pydantic's, of DeepSpeed's own, or a dictionary; two levels
    deep."""
    if isinstance(value, dict):
        return set(value)
    fields = getattr(type(value), "model_fields", None)
    if fields is None:
        return {name for name in vars(value) if not name.startswith("_")}
    names = set()
    for name, field in fields.items():
        key = field.alias or name
        names.add(key)
        for model in _models(field.annotation):
            names |= {f"{key}.{below.alias or inner}" for inner, below in model.model_fields.items()}
    return names


def _models(annotation: object) -> list:
    return [kind for kind in getattr(annotation, "__args__", (annotation,)) if hasattr(kind, "model_fields")]


def _comms_logger() -> set[str]:
    from deepspeed.comm.config import CommsLoggerConfig

    return set(CommsLoggerConfig.model_fields)


def _asked_by_initialize() -> set[str]:
    """deepspeed.initialize() reads some keys itself: "name" in config, config["name"], config.get("name")."""
    import deepspeed

    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(deepspeed.initialize))):
        if (
            isinstance(node, ast.Compare)
            and isinstance(node.left, ast.Constant)
            and any(_is_config(c) for c in node.comparators)
        ):
            found.add(node.left.value)
        if (
            isinstance(node, ast.Subscript)
            and _is_config(node.value)
            and isinstance(node.slice, ast.Constant)
        ):
            found.add(node.slice.value)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and _is_config(node.func.value)
        ):
            found |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    return found


def _asked_by_pipelines() -> set[str]:
    """What the engine reads of "pipeline" by itself."""
    from deepspeed.runtime.pipe import engine

    return {
        f"pipeline.{name}"
        for name in re.findall(r"_config\.pipeline(?:\.get\(|\[)['\"](\w+)", inspect.getsource(engine))
    }


def _is_config(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "config"


# ---- what is decided of them


def read_data() -> dict:
    """The file; the configurations of what is trained as dictionaries."""
    data = tomllib.loads(DATA.read_text())
    for training in data["trained"].values():
        for name in ("config", "beside"):
            training[name] = json.loads(training[name]) if name in training else None
    return data


def flat(configuration: dict, path: str = "") -> set[str]:
    """Its keys with dots between sections; of the optimizer and the scheduler their types."""
    found = set()
    for name, value in configuration.items():
        key = path + name
        if key in ("optimizer", "scheduler"):
            kind = value["type"] if key == "scheduler" else value["type"].lower()
            found |= {key, f"{key}.type", f"{key}.params", f"{key}.type.{kind}"}
        elif isinstance(value, dict) and value:
            found |= {key} | flat(value, f"{key}.")
        else:
            found.add(key)
    return found


VERDICTS = ("elsewhere", "refused", "removed", "refused_by_deepspeed", "no_effect", "untried")


def decided(data: dict, key: str) -> list[str]:
    """The tables of the file that decide a key, by its own name or that of a section around it; "trained"
    first."""
    parts = key.split(".")
    around = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    found = (
        ["trained"] if any(key in flat(training["config"]) for training in data["trained"].values()) else []
    )
    return found + [verdict for verdict in VERDICTS if around & data[verdict].keys()]


def table(second: str, rows: dict[str, str]) -> list[str]:
    """Lines of a table with a row for each key."""
    head = [f"| key | {second} |", "| --- | --- |"]
    return head + [f"| `{key}` | {value} |" for key, value in rows.items()]


def page(data: dict) -> str:
    """docs/deepspeed-keys.md."""
    text = [
        "# DeepSpeed's keys",
        "",
        f"What a plan makes of each key that DeepSpeed {data['deepspeed']} reads from its configuration. The",
        "tests read the file that this page is written from ([data](deepspeed-keys.toml)), and fail where a",
        "DeepSpeed has a key that is not in it. A section stands for all of its keys that have no row.",
        "",
        "## Works",
        "",
        "Trained beside DeepSpeed alone, on the same data and weights, with equal losses and weights bit for",
        "bit: two chunks a rank, split backwards, 2 ranks, or 4 with two replicas.",
        "",
    ]
    trained = {
        name: flat(training["config"]) for name, training in data["trained"].items() if name != "nothing"
    }
    keys = sorted(set().union(*trained.values()))
    shown = [key for key in keys if not any(other.startswith(f"{key}.") for other in keys)]
    with_it = {key: next(name for name, found in trained.items() if key in found) for key in shown}
    tests = {key: f"`{test}`" for key, test in data["elsewhere"].items()}
    values, removed = (
        {key: f"`{json.dumps(value)}`" for key, value in data[verdict].items()}
        for verdict in ("refused", "removed")
    )
    by = data["refused_by_deepspeed"] | {
        key: f"`runtime/config.py`: removed after 0.19.7, whatever its value; in older versions ostinato refuses {value}"
        for key, value in removed.items()
    }
    text += table("trained with it", with_it)
    text += ["", "By tests of their own:", "", *table("test", tests)]
    for title, what, second, rows in (
        ("Refused by ostinato", "Before step 1, by name, with what would be right.", "refused is", values),
        ("Refused by DeepSpeed", "For pipelines, or altogether.", "by", by),
        (
            "No effect on pipelines",
            "In DeepSpeed itself, so with a plan neither.",
            "seen in",
            data["no_effect"],
        ),
        ("Not tried", "Rank 0 says so before step 1, of all but the monitors.", "needs", data["untried"]),
    ):
        text += ["", f"## {title}", "", what, "", *table(second, rows)]
    return "\n".join(text) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(read_data()))
