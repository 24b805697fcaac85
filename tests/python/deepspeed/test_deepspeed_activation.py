# SPDX-License-Identifier: Apache-2.0
"""How ostinato is switched on, and that it leaves everything as it was where it is not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.tiers import everyday
from support.worlds import environment

import ostinato

PACKAGE = Path(ostinato.__path__[0]).parent


def python(*arguments, path=(), **variables):
    """A fresh interpreter; (standard output, standard error)."""
    paths = [str(PACKAGE), *map(str, path)]
    run = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**environment(), "PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(paths), **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout, run.stderr


@pytest.fixture
def small_deepspeed(tmp_path):
    """A DeepSpeed with nothing but what the hook touches: the real one takes seconds to import."""
    files = {
        "__init__.py": "from .runtime.pipe.engine import PipelineEngine",
        "runtime/__init__.py": "",
        "runtime/pipe/__init__.py": "",
        "runtime/pipe/engine.py": "class DeepSpeedEngine:\n    pass\nclass PipelineEngine(DeepSpeedEngine):\n    pass",
        "runtime/tensor_parallel/__init__.py": "",
        "runtime/tensor_parallel/init_utils.py": "def load_ds_config(config):\n    return config",
    }
    for name, text in files.items():
        path = tmp_path / "small" / "deepspeed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "small"


@pytest.fixture
def installed(tmp_path):
    """What pip leaves of the entry point."""
    info = tmp_path / "site" / "ostinato-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ostinato\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nostinato = ostinato.autoload:register\n")
    return info.parent


STATE = """
import sys
{first}
finder = [f for f in sys.meta_path if type(f).__name__ == "_EngineFinder"]
before = [len(finder), "ostinato.deepspeed" in sys.modules, "deepspeed" in sys.modules]
import deepspeed
from deepspeed.runtime.pipe.engine import PipelineEngine
import json
after = [type(f).__name__ for f in sys.meta_path]
print(json.dumps({{"before": before, "finder": "_EngineFinder" in after,
    "wrapped": hasattr(PipelineEngine.__init__, "__wrapped__"),
    "loader": type(sys.modules["deepspeed.runtime.pipe.engine"].__spec__.loader).__name__}}))
"""


@pytest.mark.parametrize("first", everyday(["import torch", "import deepspeed"], "import torch"))
def test_importing_torch_is_enough(installed, first):
    """Also where DeepSpeed is what imports torch."""
    out, _ = python("-c", STATE.format(first=first), path=[installed])
    state = json.loads(out.splitlines()[-1])
    assert state["wrapped"] and not state["finder"]
    assert state["loader"] == "SourceFileLoader"
    if first == "import torch":
        assert state["before"] == [1, False, False]  # nothing but the finder


def test_switched_off_by_the_environment(installed, small_deepspeed):
    paths = [installed, small_deepspeed]
    out, _ = python("-c", STATE.format(first="import torch"), path=paths, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert not json.loads(out.splitlines()[-1])["wrapped"]


@pytest.mark.parametrize(
    "first",
    everyday(
        ["import ostinato.deepspeed", "import deepspeed, ostinato.deepspeed"],
        "import deepspeed, ostinato.deepspeed",
    ),
)
def test_importing_the_package_is_enough(small_deepspeed, first):
    out, err = python(
        "-c", STATE.format(first=first), path=[small_deepspeed], TORCH_DEVICE_BACKEND_AUTOLOAD="0"
    )
    assert json.loads(out.splitlines()[-1])["wrapped"]
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in err


def test_run_module(tmp_path, small_deepspeed):
    """As `python script` would, with ostinato switched on first."""
    script = tmp_path / "train.py"
    script.write_text("import helper, sys\nprint(__name__, sys.argv[1:])\n" + STATE.format(first=""))
    (tmp_path / "helper.py").write_text("")
    arguments = ["-m", "ostinato.run", script, "--a", "b"]
    out, _ = python(*arguments, path=[small_deepspeed], TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "__main__ ['--a', 'b']" in out
    assert json.loads(out.splitlines()[-1])["wrapped"]


def test_run_module_without_a_script():
    run = subprocess.run(
        [sys.executable, "-m", "ostinato.run"], env={"PYTHONPATH": str(PACKAGE)}, capture_output=True
    )
    assert run.returncode == 2 and b"usage: python -m ostinato.run" in run.stderr
    for words, message in (
        (["none.py"], b"none.py: no such file"),
        (["-m", "none"], b"-m none: No module named none"),
    ):
        run = subprocess.run(
            [sys.executable, "-m", "ostinato.run", *words],
            env={"PYTHONPATH": str(PACKAGE)},
            capture_output=True,
        )
        assert (
            run.returncode == 2
            and run.stderr.startswith(b"python -m ostinato.run: " + message)
            and b"Traceback" not in run.stderr
        )


def test_an_error_does_not_break_torch(installed, small_deepspeed):
    """Whatever goes wrong while ostinato is loaded is one line; torch and DeepSpeed import all the same."""
    broken = "import sys, types\nsys.modules['ostinato.deepspeed'] = types.ModuleType('broken')\nimport torch"
    out, err = python("-c", STATE.format(first=broken), path=[installed, small_deepspeed])
    assert not json.loads(out.splitlines()[-1])["wrapped"]
    assert err.count("ostinato: could not be loaded") == 1


def plain_engine(section) -> dict:
    """One rank, no pipeline: what initialize() says."""
    import deepspeed
    import torch

    config = {
        "train_batch_size": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}},
        **section,
    }
    try:
        engine, *_ = deepspeed.initialize(model=torch.nn.Linear(2, 2), config=config)
    except Exception as error:
        return {"error": str(error)}
    return {"kind": f"{type(engine).__module__}.{type(engine).__qualname__}"}


def copied_engine(section) -> str:
    """A script's own engine, made as DeepSpeed's is but no subclass of it: what it says over a PipelineModule."""
    import torch
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.engine import DeepSpeedEngine

    class PipelineEngine(DeepSpeedEngine):
        pass

    try:
        PipelineEngine(None, PipelineModule([torch.nn.Linear(2, 2)], num_stages=1), config=section)
    except Exception as error:
        return str(error)
    return ""


def test_models_without_a_pipeline():
    script = (
        "import deepspeed, json, sys; sys.path[:0] = sys.argv[1:]; import ostinato.deepspeed\n"
        "from deepspeed.ops import __compatible_ops__; __compatible_ops__['deepspeed_shm_comm'] = False\n"
        "from test_deepspeed_activation import copied_engine, plain_engine\n"
        "deepspeed.init_distributed(dist_backend='gloo')\n"
        "section = {'ostinato': {'plan': 'p.json'}}\n"
        "print(json.dumps([plain_engine(section), plain_engine({}), copied_engine(section)]))"
    )
    out, _ = python("-c", script, *Path(__file__).parents[:2], MASTER_PORT="0")
    refused, made, copied = json.loads(out.splitlines()[-1])
    assert (
        "needs a deepspeed.pipe.PipelineModule, which this model, a torch.nn.modules.linear.Linear, is not"
        in refused["error"]
        and "ostinato.hf.layers()" in refused["error"]
    )
    assert made["kind"] == "deepspeed.runtime.engine.DeepSpeedEngine"
    assert "needs deepspeed.runtime.pipe.engine.PipelineEngine or a subclass" in copied
    assert "copied_engine.<locals>.PipelineEngine, with which this run trains a PipelineModule" in copied
