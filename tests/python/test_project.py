# SPDX-License-Identifier: Apache-2.0
"""The files around the project: workflows and forms are whole and call scripts that exist; what SECURITY.md
says of the code holds; Slurm's files start what they say."""

import ast
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
OURS = ("bindings", "plugin", "profiler", "search")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(
    path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"
)
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def jobs() -> list[tuple[str, dict]]:
    return [
        (f"{path.name}: {name}", job)
        for path in WORKFLOWS
        for name, job in yaml.safe_load(path.read_text())["jobs"].items()
    ]


def commands(job: dict) -> list[str]:
    """What a job runs, a matrix's entries each by themselves."""
    matrix = [
        entry["run"]
        for entry in job.get("strategy", {}).get("matrix", {}).get("include", ())
        if "run" in entry
    ]
    steps = [step["run"] for step in job["steps"] if "run" in step]
    return [command for step in steps for command in (matrix if step == "${{ matrix.run }}" else [step])]


def test_workflows_run_scripts_of_ours_and_nothing_else():
    ran = [command for name, job in jobs() for command in commands(job)]
    assert {".ci/run", "script/test --all", "script/wheels", "script/site", "tests/gpu/machine.sh"} <= set(
        ran
    )
    for command in ran:
        script, *options = command.split()
        assert os.access(ROOT / script, os.X_OK), command
        assert all(option in (ROOT / script).read_text() for option in options), command


def test_every_job_names_its_machine_and_pins_its_actions():
    for name, job in jobs():
        assert job["runs-on"], name
        assert all(
            re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"]) for step in job["steps"] if "uses" in step
        ), name


def test_tests_run_on_every_python_that_the_package_names():
    matrix = dict(jobs())["ci.yml: tests"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {
        entry.rpartition(" ")[2] for entry in project["classifiers"] if re.search(r"Python :: 3\.\d+$", entry)
    }
    assert set(matrix["python"]) == named
    pinned = dict(
        re.findall(r"^(torch|deepspeed)==(\S+)$", (ROOT / "script/requirements.txt").read_text(), re.M)
    )
    assert matrix["torch"] == [pinned["torch"]] and matrix["deepspeed"] == [pinned["deepspeed"]]


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.name)
def test_forms_ask_with_known_fields(form):
    made = yaml.safe_load(form.read_text())
    assert made["name"] and made["description"] and made["body"]
    ids = [field["id"] for field in made["body"]]
    assert len(set(ids)) == len(ids)
    for field in made["body"]:
        assert (
            field["type"] in ("textarea", "input", "dropdown", "checkboxes") and field["attributes"]["label"]
        )
        assert field["type"] != "dropdown" or all(
            isinstance(option, str) for option in field["attributes"]["options"]
        )


def test_versions_agree():
    built = re.search(r"project\(ostinato VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert VERSION == built == cited["version"] and f"## {VERSION}" in (ROOT / "CHANGELOG.md").read_text()
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()


def test_the_second_wheel_goes_with_the_first():
    """What is compiled for one torch says which, and needs the very version of the rest."""
    first = tomllib.loads((ROOT / "pyproject.toml").read_text())
    second = tomllib.loads((ROOT / "bindings/deepspeed-wheel/pyproject.toml").read_text())
    assert second["build-system"] == first["build-system"] and second["project"]["version"] == VERSION
    assert second["project"]["requires-python"] == first["project"]["requires-python"]
    release = re.search(r"^torch==(\d+\.\d+)\.", (ROOT / "script/requirements.txt").read_text(), re.M)[1]
    wanted = {
        f"ostinato=={VERSION}",
        f"torch=={release}.*",
        *first["project"]["optional-dependencies"]["deepspeed"],
    }
    assert set(second["project"]["dependencies"]) == wanted


def test_the_image_takes_the_versions_of_setup():
    image, pinned = (ROOT / "Dockerfile").read_text(), (ROOT / "script/requirements.txt").read_text()
    for name in ("torch", "deepspeed"):
        assert (
            re.search(rf"^{name}==(.*)$", pinned, re.M)[1]
            == re.search(rf"^ARG {name.upper()}=(.*)$", image, re.M)[1]
        )


def python_files() -> list[Path]:
    return [path for folder in OURS for path in (ROOT / folder).rglob("*.py")]


def calls(path: Path) -> set[str]:
    """Names that a file calls, with what they are attributes of: "os.system"."""
    return {
        ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    }


def test_nothing_is_evaluated_unpickled_or_given_to_a_shell():
    """But for what SECURITY.md calls trusted: layers that ranks of one launch send each other."""
    found = {str(path.relative_to(ROOT)): calls(path) for path in python_files()}
    assert len(found) > 100
    for path, called in found.items():
        last = {name.rpartition(".")[2] for name in called}
        assert not last & {"eval", "exec", "system", "popen", "getoutput", "listen", "urlopen"}, path
        assert "shell=True" not in (ROOT / path).read_text(), path
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in python_files()}
    assert not [
        path
        for path, text in texts.items()
        if re.search(r"^\s*(import|from) (pickle|marshal|shelve)\b", text, re.M)
    ]
    of_deepspeed = "plugin/python/deepspeed/save/optimizer_files.py"  # reads what DeepSpeed unpickles itself
    loads = {
        (path, line.strip())
        for path, text in texts.items()
        for line in text.splitlines()
        if "torch.load(" in line
    }
    assert len(loads) > 1 and all("weights_only=True" in line for path, line in loads if path != of_deepspeed)


def test_nothing_in_cpp_runs_a_shell_or_opens_a_socket():
    files = [path for folder in OURS for kind in ("*.cpp", "*.h") for path in (ROOT / folder).rglob(kind)]
    assert len(files) > 300
    assert [
        str(path)
        for path in files
        if re.search(r"\b(popen|system|execl|execvp?|socket|listen)\(|<sys/socket\.h>", path.read_text())
    ] == []


def test_files_are_read_up_to_the_sizes_that_are_told():
    told = " ".join((ROOT / "SECURITY.md").read_text().split())
    units = {20: "MiB", 30: "GiB"}
    caps = {}
    for path in [*(ROOT / "search").rglob("*.h"), *(ROOT / "bindings").rglob("*.cpp")]:
        for name, size, unit in re.findall(
            r"kMax(\w+)Bytes = std::size_t\{(\d+)\} << (\d+);", path.read_text()
        ):
            caps[name] = f"{size} {units[int(unit)]}"
    assert set(caps) == {"Placement", "Profile", "Cluster", "Options", "Plan", "Graph", "Sizes"}
    for words, names in {
        "A placement or a profile has": ("Placement", "Profile"), "a device file": ("Cluster",), "options": ("Options",),
        "a plan or a graph": ("Plan", "Graph"), "sizes": ("Sizes",),
    }.items():  # fmt: skip
        assert {f"{words} {caps[name]}" in told for name in names} == {True}, words


def with_stand_ins(folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    """An environment in which these programs print their words."""
    for name in names:
        (folder / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (folder / name).chmod(0o755)
    return os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "SLURM_NNODES": "2",
        "SLURM_JOB_ID": "7",
        "SLURM_GPUS_PER_NODE": "h100:4",
    }


@pytest.mark.parametrize(
    ("file", "started"),
    [
        ("srun.sbatch", "srun python -m ostinato.run train.py --x 1\n"),
        (
            "torchrun.sbatch",
            "srun torchrun --nnodes 2 --nproc-per-node 4 --rdzv-id 7 --rdzv-backend c10d --rdzv-endpoint node0:29500 train.py --x 1\n",
        ),
    ],
)
def test_batch_files_start_the_script(file, started, tmp_path):
    environment = with_stand_ins(tmp_path, ("srun", "scontrol"))
    (tmp_path / "scontrol").write_text('#!/bin/sh\nprintf "node0\\nnode1\\n"\n')
    words = ["bash", "-eu", str(ROOT / "examples/slurm" / file), "train.py", "--x", "1"]
    done = subprocess.run(
        words, env=environment | {"SLURM_JOB_NODELIST": "node[0-1]"}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, started), done.stderr
