# SPDX-License-Identifier: Apache-2.0
"""What the GPU tests do not ask. Each question prints lines that start with "gpu-run:" (run.py); one that
fails does not stop the others.

    python tests/gpu/extra.py OUT      # on the GPU; OSTINATO_GPU_TESTS=cpu tries the script itself where there is none

QUESTIONS=35 asks some of them. Exit status 1: a question failed.

1 kernels' time by CUPTI (ours) beside torch.profiler's, one process, one after the other, and ours again
after it 2 what a CUDA graph's replay looks like in a session 3 the executor of one rank: a step beside a
plain loop, its allocated memory over 200 steps, host time to issue a step 4 lanes: does a copy on a lane run
beside a matrix product (priority of streams) 5 `ostinato profile` of examples/gpt as a user runs it, and
DeepSpeed training a one-device plan of it
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
OUT = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
DEVICE = torch.device("cpu" if os.environ.get("OSTINATO_GPU_TESTS") == "cpu" else "cuda:0")
GPU = DEVICE.type == "cuda"
sys.path.insert(0, str(ROOT / "tests" / "python"))


def say(what):
    print(f"gpu-run: question {what}", flush=True)


def sync():
    if GPU:
        torch.cuda.synchronize()


def model(width=2048, layers=4):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers))).to(
        DEVICE
    )


def ours(run):
    """(timer, busy ns, losses' reason) of one session."""
    from ostinato import _profiler
    from ostinato.profile.measure.operators import EVENTS, recording

    recorder = _profiler.OperatorRecorder(events_per_thread=EVENTS)
    timer, note = _profiler.choose_timer(str(DEVICE), "")
    with recording(recorder, timer=timer):
        recorder.begin_pass(0, "forward")
        run()
        sync()
        recorder.end_pass()
    times = timer.stop()
    state = times.losses.completeness()
    return timer.name, note, sum(layer[4] for layer in times.layers), state


def question_1_torch_profiler():
    net, x = model(), torch.randn(512, 2048, device=DEVICE)
    run = lambda: net(x).square().mean().backward()  # noqa: E731
    for _ in range(3):
        run()
    for turn in range(3):
        name, note, busy, state = ours(run)
        say(
            f"1: session {turn}: {name} {note} {busy} ns, launches {state.seen}/{state.expected}, {state.reason or 'complete'}"
        )
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as prof:
        run()
        sync()
    kernels = [e for e in prof.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    say(
        f"1: torch.profiler: {round(1000 * sum(e.device_time_total if hasattr(e, 'device_time_total') else 0 for e in kernels))} ns in {len(kernels)} activities"
    )
    name, note, busy, state = ours(run)  # does Kineto hold CUPTI now, and are our times still nanoseconds?
    say(f"1: after torch.profiler: {name} {note} {busy} ns, {state.reason or 'complete'}")


def question_2_graph():
    if not GPU:
        return say("2: skipped")
    net, x = model(), torch.randn(512, 2048, device=DEVICE)
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                net(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            net(x)
        name, note, busy, state = ours(lambda: graph.replay())
        say(
            f"2: replay of a graph: {name} {note} {busy} ns, launches {state.seen}/{state.expected}, out of range {state.out_of_range}, {state.reason or 'complete'}"
        )
        name, note, busy, state = ours(lambda: net(x))
        say(
            f"2: the same without: {name} {busy} ns, launches {state.seen}/{state.expected}, {state.reason or 'complete'}"
        )


def question_3_executor():
    from ostinato import _plugin
    from plan_files import write_chain

    width, batch, micro_batches = (2048, 256, 8) if GPU else (64, 8, 8)
    with tempfile.TemporaryDirectory() as folder:
        program = _plugin.lower(*write_chain(Path(folder) / "p", [0, 0, 0, 0], micro_batches, in_flight=4))
    stages = [nn.Sequential(nn.Linear(width, width), nn.GELU()).to(DEVICE) for _ in range(4)]
    data = [torch.randn(batch, width, device=DEVICE) for _ in range(micro_batches)]
    executor = _plugin.Executor(program, 0, None, [0], device=DEVICE)

    def forward_of(s):
        def forward(m, inputs):
            out = stages[s](data[m] if inputs is None else inputs[0])
            return out.square().mean() / micro_batches if s == 3 else out

        return forward

    for s in range(4):
        executor.set_stage(s, forward_of(s))

    def plain():
        for x in data:
            for stage in stages:
                x = stage(x)
            (x.square().mean() / micro_batches).backward()

    def time_of(run, turns=30):
        times = []
        for _ in range(turns):
            sync()
            begin = time.perf_counter()
            run()
            sync()
            times.append(time.perf_counter() - begin)
        return 1e3 * statistics.median(times)

    for run in (executor.run, plain):
        time_of(run, 5)
    say(
        f"3: one rank, 4 stages, {micro_batches} micro-batches: executor {time_of(executor.run):.3f} ms, plain loop {time_of(plain):.3f} ms"
    )
    if GPU:
        before = torch.cuda.memory_allocated()
        for _ in range(200):
            executor.run()
        say(f"3: allocated {before} B before 200 steps, {torch.cuda.memory_allocated()} B after")
    rows = executor.records()
    say(f"3: records of the last step: {len(rows)}, from {rows[0][1]} to {max(r[2] for r in rows)} ns")


def question_4_lanes():
    if not GPU:
        return say("4: skipped")
    a = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    small, there = torch.randn(1 << 20, device=DEVICE), torch.empty(1 << 20, device=DEVICE)
    for priority in (0, -1):
        lane, late = torch.cuda.Stream(priority=priority), []
        for _ in range(10):
            begin, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            for _ in range(4):
                a @ a
            begin.record(lane)
            with torch.cuda.stream(lane):
                there.copy_(small * 2)  # a kernel, as NCCL's send is
                done.record()
            torch.cuda.synchronize()
            late.append(begin.elapsed_time(done))
        say(
            f"4: 4 MiB kernel on a stream of priority {priority} beside matrix products: {statistics.median(late):.3f} ms"
        )


def command(*words, env=None, seconds=170):
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=seconds, cwd=ROOT, env=os.environ | (env or {})
    )
    return done.returncode, done.stdout, done.stderr


def question_5_user():
    folder = Path(tempfile.mkdtemp())
    section = {
        "plan": str(folder / "plan.json"),
        "placement": str(folder / "placement.toml"),
        "trace": str(folder / "trace"),
    }
    config = json.loads((ROOT / "examples/gpt/ds_config.json").read_text())
    (folder / "bare.json").write_text(json.dumps(config))
    (folder / "planned.json").write_text(json.dumps(config | {"ostinato": section}))
    train = [str(ROOT / "examples/gpt/train.py"), "--deepspeed_config"]
    size = ["--width", "1024", "--heads", "16", "--depth", "8"] if GPU else ["--depth", "2"]
    cpu = {} if GPU else {"DS_ACCELERATOR": "cpu"}
    profile = OUT / "profile.json"
    status, out, err = command(sys.executable, "-m", "ostinato", "profile", train[0], "--output", str(profile), "--no-transfers", "--check", "2",
                               "--repeats", "10" if GPU else "3", "--", train[1], str(folder / "bare.json"), *size, env=cpu)  # fmt: skip
    say(f"5: profile: status {status}")
    print(out[-3000:], err[-3000:])
    if status not in (0, 6):
        return
    status, out, err = command(sys.executable, "-m", "ostinato", "plan", str(profile), "--devices", "1", "--micro-batches", "8",
                               "--placement-output", section["placement"], "--output", section["plan"])  # fmt: skip
    say(f"5: plan: status {status}")
    print(out[-1500:], err[-1500:])
    for name in ("bare", "planned"):
        status, out, err = command(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--master-port", "29533", "-m", "ostinato.run", *train,
                                   str(folder / f"{name}.json"), "--steps", "6", "--stages", "1", *size, env=cpu | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"})  # fmt: skip
        say(f"5: DeepSpeed, {name}: status {status}")
        print(out[-1500:], err[-2500:] if status else "")


if GPU and not torch.cuda.is_available():
    print(f"skipped: torch {torch.__version__} finds no GPU")
    sys.exit(0)
OUT.mkdir(parents=True, exist_ok=True)
chosen, failed = os.environ.get("QUESTIONS", "12345"), 0
for question in (
    question_1_torch_profiler,
    question_2_graph,
    question_3_executor,
    question_4_lanes,
    question_5_user,
):
    if question.__name__.split("_")[1] not in chosen:
        continue
    begin = time.perf_counter()
    try:
        question()
    except Exception:
        failed = 1
        traceback.print_exc()
        say(f"{question.__name__} FAILED: {traceback.format_exc().strip().rpartition(chr(10))[2]}")
    print(f"{question.__name__}: {time.perf_counter() - begin:.1f} s")
sys.exit(failed)
