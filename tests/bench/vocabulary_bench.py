# SPDX-License-Identifier: Apache-2.0
"""A vocabulary divided over all stages: steps measured on 8 A100, beside what their own passes predict and
what a search finds.

    python tests/bench/vocabulary_bench.py ROWS.json [--time-limit SECONDS]

ROWS: of sail-sg/VocabularyParallelism (6191c3bf, artifact/exp_one_host.csv; arXiv 2411.05288), a list of
{"name", "m": micro-batches, "measured_ms", "F", "B": µs of each stage, "passes": µs of each stage for the
head, the embedding's forward and backward, and a message}.

Head and embedding lie on all devices. `interlaced` runs them in lockstep: each is one block on eight devices.
`vocab` and `synctwice` do not: each device has a block of its own, all of which the next stage waits for. The
order is that of the repository's schedules, told by counts: how many forwards and heads come before the part
that repeats. A room of one per micro-batch in flight is what it holds.
"""

import argparse
import itertools
import json
import tempfile
from pathlib import Path

import ostinato

IN_FLIGHT = {"vocab": 1, "synctwice": 2, "interlaced": 4}  # micro-batches more than 1F1B holds


class Row:
    def __init__(self, row: dict):
        self.name, self.n, self.measured = row["name"], row["m"], row["measured_ms"]
        self.method = self.name.split("_")[1]
        self.forward, self.backward = row["F"], row["B"]
        self.head, self.embed, self.embed_back, self.message = row["passes"]
        self.stages = range(len(self.forward))
        self.lockstep = self.method == "interlaced"
        self.more = IN_FLIGHT[self.method]

    def room(self, stage: int) -> int:
        return len(self.stages) - stage + self.more

    def label(self) -> str:
        words = self.name.split("_")
        return f"{words[1]}, {words[-2][1:]}, {words[-1][1:]}"


def placement_of(row: Row) -> ostinato.Placement:
    lines = [
        'format = "ostinato-placement/1"',
        f'name = "{row.name}"',
        'time_unit = "us"',
        'memory_unit = "B"',
    ]
    lines += [f"[link]\nlatency = {max(row.message)}"]
    lines += [f"[[devices]]\nmemory = {row.room(s)}" for s in row.stages]

    def block(
        name: str, kind: str, devices: list[int], time: int, after: list[str], memory: int = 0
    ) -> list[str]:
        lines.append(
            f'[[blocks]]\nname = "{name}"\nstage = "{name[1:]}"\nkind = "{kind}"\ndevices = {devices}\ntime = {time}'
        )
        lines.append(f"memory = {memory}\nafter = {json.dumps(after)}")
        return [name]

    def divided(name: str, times: list[int], after: list[str]) -> list[str]:
        if row.lockstep:
            return block(name, "other", list(row.stages), max(times), after)
        return [block(f"{name}{s}", "other", [s], times[s], after)[0] for s in row.stages]

    last = divided("e", row.embed, [])
    for s in row.stages:
        last = block(f"F{s}", "forward", [s], row.forward[s], last, 1)
    last = divided("h", row.head, last)
    for s in reversed(row.stages):
        last = block(f"B{s}", "backward", [s], row.backward[s], [*last, f"F{s}"], -1)
    divided("g", row.embed_back, last)
    return ostinato.Placement.from_text("\n".join(lines) + "\n")


def head_first(row: Row) -> list[bool]:
    """Of each stage that does not run in lockstep: the head comes between backward and forward, not behind
    them."""
    f, b = (sum(times) / len(times) for times in (row.forward, row.backward))
    first, at = [True], 0.0
    while len(first) < len(row.stages):
        if at - f >= -b:
            at -= f
            first.append(True)
        else:
            at += b - f
            first += [False, True]
    return first[: len(row.stages)][::-1]


def kinds_of(row: Row, s: int) -> str:
    """The order of a stage: F, B, h (the head)."""
    p, n = len(row.stages), row.n
    if row.lockstep:
        many = p * 3 // 2 - s
        waiting = max(0, p // 2 - (p - s - 1) // 2)
        start = "F" * many + "h" * (p - s) + "Bh" * waiting
        return (
            start
            + ("FBh" if s % 2 == p % 2 else "BFh") * (n - many)
            + "Bh" * (p // 2 - waiting)
            + "B" * (p - s)
        )
    first = head_first(row)
    heads = 0
    for r in range(p - 2, s - 1, -1):
        heads += first[r + 1] or not first[r]
    start = "F" * (p - s) + "hF" * row.more + "h" * heads
    body = ("BhF" if first[s] else "BFh") * (n - (p - s) - row.more)
    left = n - start.count("h") - body.count("h")
    return start + body + "Bh" * left + "B" * (n - body.count("B") - left)


def with_embeddings(row: Row, kinds: str, lag: int) -> str:
    """e and g, the embedding's forward and backward: the first forwards at once, then one of each behind a
    head."""
    early = len(row.stages) + row.more + lag
    order, heads, e, g = ["e" * min(early, row.n)], 0, min(early, row.n), 0
    for kind in kinds:
        order.append(kind)
        if kind != "h":
            continue
        heads += 1
        if e < row.n:
            order.append("e")
            e += 1
        if heads > len(row.stages) + row.more + lag:
            order.append("g")
            g += 1
    return "".join(order) + "g" * (row.n - g)


class Run:
    """The published order, each step as early as it allows. `starts` (ns, block, micro-batch) is empty where
    the order cannot run."""

    def __init__(self, row: Row, lag: int):
        self.row = row
        self.orders = [with_embeddings(row, kinds_of(row, s), lag) for s in row.stages]
        self.wide = "heg" if row.lockstep else ""
        self.times = {"e": row.embed, "F": row.forward, "h": row.head, "B": row.backward, "g": row.embed_back}
        self.ends: dict[tuple[str, int, int], int] = {}  # of kind, micro-batch, stage
        self.free, self.at = [0] * len(self.orders), [0] * len(self.orders)
        self.counts = [dict.fromkeys("eFhBg", 0) for _ in self.orders]
        self.starts: list[tuple[int, str, int]] = []
        while any(at < len(order) for at, order in zip(self.at, self.orders, strict=True)):
            if not any([self.advance(s) for s in row.stages]):
                self.starts = []
                return

    def advance(self, s: int) -> bool:
        moved = False
        while self.at[s] < len(self.orders[s]) and self.step(self.orders[s][self.at[s]], s):
            moved = True
        return moved

    def step(self, kind: str, s: int) -> bool:
        mine = list(self.row.stages) if kind in self.wide else [s]
        if any(self.orders[r][self.at[r] : self.at[r] + 1] != kind for r in mine):
            return False
        i = self.counts[s][kind]
        ready = [self.ready(kind, i, r) for r in mine]
        if min(ready) < 0:
            return False
        start = max(max(ready), max(self.free[r] for r in mine))
        end = start + 1000 * max(self.times[kind][r] for r in mine)
        for r in mine:
            self.ends[kind, i, r] = self.free[r] = end
            self.at[r] += 1
            self.counts[r][kind] += 1
        self.starts.append((start, kind if kind in self.wide else f"{kind}{s}", i))
        return True

    def inputs(self, kind: str, s: int) -> list[tuple[str, int]]:
        all_of, last = list(self.row.stages), len(self.row.stages) - 1
        if kind == "F":
            return [("F", s - 1)] if s else [("e", r) for r in all_of]
        if kind == "B":
            return [("B", s + 1)] if s < last else [("h", r) for r in all_of]
        return {"e": [], "h": [("F", last)], "g": [("B", 0)]}[kind]

    def ready(self, kind: str, i: int, s: int) -> int:
        """When the inputs have arrived; -1: not known yet."""
        latest = 0
        for before, r in self.inputs(kind, s):
            end = self.ends.get((before, i, r), -1)
            if end < 0:
                return -1
            latest = max(latest, end + (0 if r == s or before in self.wide else 1000 * max(self.row.message)))
        return latest


def published(row: Row, placement: ostinato.Placement, folder: Path) -> ostinato.Plan:
    """The published order as a plan: `verify` says whether the placement allows it, within its memory."""
    starts = next(starts for lag in itertools.count() if (starts := Run(row, lag).starts))
    blocks = {block["name"]: block for block in placement.to_dict()["blocks"]}
    first, last = [2**62] * len(row.stages), [0] * len(row.stages)
    for start, name, _ in starts:
        for device in blocks[name]["devices"]:
            first[device] = min(first[device], start)
            last[device] = max(last[device], start + 1000 * blocks[name]["time"])
    starts.sort(key=lambda step: (step[0], blocks[step[1]]["devices"], step[1]))
    plan = {
        "format": "ostinato-plan/1", "placement": {"name": placement.name, "sha256": placement.sha256}, "micro_batches": row.n,
        "objective": "makespan", "makespan": max(last), "span": max(end - begin for begin, end in zip(first, last, strict=True)),
        "steady_state": {"period": 0, "unroll": 1, "first": 0, "count": 0}, "lower_bound": {"makespan": 0, "period": 0},
        "optimal": {"makespan": False, "period": False}, "peak_memory": [row.room(s) for s in row.stages],
        "search": {"method": "published", "seed": 0, "cut_by_limit": False},
        "schedule": [{"block": name, "micro_batch": i, "start": start} for start, name, i in starts],
    }  # fmt: skip
    path = folder / "published.json"
    path.write_text(json.dumps(plan))
    return checked(ostinato.Plan.from_file(path, placement))


def checked(plan: ostinato.Plan) -> ostinato.Plan:
    check = ostinato.verify(plan)
    assert check, check.failures
    return plan


def line_of(row: Row, time_limit: float) -> str:
    placement = placement_of(row)
    with tempfile.TemporaryDirectory() as folder:
        order = published(row, placement, Path(folder))
    line = f"{row.label():26} {row.measured:9.1f} {order.makespan / 1e6:9.1f} {100 * (order.makespan / 1e6 / row.measured - 1):+6.2f} %"
    if time_limit < 0:
        return line
    ours = checked(ostinato.search(placement, micro_batches=row.n, time_limit=time_limit))
    gap = 100 * (ours.makespan / ours.lower_bound - 1)
    cut = ", cut" if ours.cut_by_limit else ""
    return f"{line} {ours.makespan / 1e6:9.1f} {ours.lower_bound / 1e6:9.1f} {gap:5.2f} % {order.makespan / ours.makespan:6.3f}{cut}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument(
        "--time-limit", type=float, default=0, help="seconds of each search; 0: none; below 0: no search"
    )
    options = parser.parse_args()
    print(
        "method, vocabulary, words    measured published  error      found     bound     gap  ratio   (ms a step)"
    )
    for row in json.loads(options.rows.read_text()):
        if any(map(any, row["passes"])):
            print(line_of(Row(row), options.time_limit), flush=True)


if __name__ == "__main__":
    main()
