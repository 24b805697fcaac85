# SPDX-License-Identifier: Apache-2.0
"""A vocabulary divided over all stages: steps measured on 8 A100, beside what their own passes predict and what a search finds.

    python tests/bench/vocabulary_bench.py ROWS.json [--search] [--time-limit SECONDS]

ROWS: of sail-sg/VocabularyParallelism (6191c3bf, artifact/exp_one_host.csv; arXiv 2411.05288), a list of {"name", "m": micro-batches,
"measured_ms", "F", "B": µs of each stage, "passes": µs of each stage for the head, the embedding's forward and backward, and a message}.

Head and embedding lie on all devices. `interlaced` runs them in lockstep: each is one block on eight devices. `vocab` and `synctwice` do
not: each device has a block of its own, all of which the next stage waits for. The order is that of the repository's schedules, told by
counts: how many forwards and heads come before the part that repeats. A room of one per micro-batch in flight is what it holds.
"""

import argparse
import itertools
import json
from pathlib import Path

import ostinato

IN_FLIGHT = {"vocab": 1, "synctwice": 2, "interlaced": 4}  # micro-batches more than 1F1B holds


class Row:
    def __init__(self, row: dict):
        self.name, self.n, self.measured = row["name"], row["m"], row["measured_ms"]
        self.method = self.name.split("_")[1]
        self.forward, self.backward = row["F"], row["B"]
        self.head, self.embed, self.embed_back, self.message = row["passes"]
        self.message_time = 1000 * max(self.message)
        self.stages = range(len(self.forward))
        self.lockstep = self.method == "interlaced"
        self.more = IN_FLIGHT[self.method]

    def room(self, stage: int) -> int:
        return len(self.stages) - stage + self.more

    def label(self) -> str:
        words = self.name.split("_")
        return f"{words[1]}, {words[-2][1:]}, {words[-1][1:]}"


def placement_of(row: Row) -> ostinato.Placement:
    lines = ['format = "ostinato-placement/1"', f'name = "{row.name}"', 'time_unit = "us"', 'memory_unit = "B"']
    lines += [f"[link]\nlatency = {max(row.message)}"]
    lines += [f"[[devices]]\nmemory = {row.room(s)}" for s in row.stages]

    def block(name: str, kind: str, devices: list[int], time: int, after: list[str], memory: int = 0) -> list[str]:
        lines.append(f'[[blocks]]\nname = "{name}"\nstage = "{name[1:]}"\nkind = "{kind}"\ndevices = {devices}\ntime = {time}')
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
    """Of each stage that does not run in lockstep: the head comes between backward and forward, not behind them."""
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
        return start + ("FBh" if s % 2 == p % 2 else "BFh") * (n - many) + "Bh" * (p // 2 - waiting) + "B" * (p - s)
    first = head_first(row)
    heads = 0
    for r in range(p - 2, s - 1, -1):
        heads += first[r + 1] or not first[r]
    start = "F" * (p - s) + "hF" * row.more + "h" * heads
    body = ("BhF" if first[s] else "BFh") * (n - (p - s) - row.more)
    left = n - start.count("h") - body.count("h")
    return start + body + "Bh" * left + "B" * (n - body.count("B") - left)


def with_embeddings(row: Row, kinds: str, lag: int) -> str:
    """e and g, the embedding's forward and backward: the first forwards at once, then one of each behind a head."""
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


def timed(row: Row, lag: int) -> list[tuple[int, str, int]] | None:
    """Starts in ns of the published order, as early as it allows; None where it cannot run."""
    orders = [with_embeddings(row, kinds_of(row, s), lag) for s in row.stages]
    done: dict[tuple[str, int, int], int] = {}
    free, at, counts = [0] * len(orders), [0] * len(orders), [dict.fromkeys("FBhege", 0) for _ in orders]
    wide = "heg" if row.lockstep else ""
    found: list[tuple[int, str, int]] = []

    def from_others(kind: str, i: int, s: int) -> int | None:
        known = [done.get((kind, i, r), None) for r in row.stages]
        if None in known:
            return None
        return max(end + (row.message_time if r != s and not row.lockstep else 0) for r, end in enumerate(known) if end is not None)

    def ready(kind: str, i: int, s: int) -> int | None:
        last = len(row.stages) - 1
        if kind == "e":
            return 0
        before = {"F": ("e", s) if s == 0 else ("F", s - 1), "h": ("F", last), "B": ("h", s) if s == last else ("B", s + 1), "g": ("B", 0)}
        from_kind, r = before[kind]
        if from_kind in "eh":
            return from_others(from_kind, i, s)
        end = done.get((from_kind, i, r))
        return None if end is None else end + (row.message_time if r != s else 0)

    while any(a < len(o) for a, o in zip(at, orders, strict=True)):
        moved = False
        for s, order in enumerate(orders):
            while at[s] < len(order):
                kind = order[at[s]]
                mine = list(row.stages) if kind in wide else [s]
                if any(at[r] >= len(orders[r]) or orders[r][at[r]] != kind for r in mine):
                    break
                i = counts[s][kind]
                begins = [ready(kind, i, r) for r in mine]
                if None in begins:
                    break
                start = max(max(begin for begin in begins if begin is not None), max(free[r] for r in mine))
                times = {"e": row.embed, "F": row.forward, "h": row.head, "B": row.backward, "g": row.embed_back}[kind]
                time = 1000 * (max(times) if kind in wide else times[s])
                for r in mine:
                    done[kind, i, r], free[r] = start + time, start + time
                    at[r] += 1
                    counts[r][kind] += 1
                found.append((start, kind if kind in wide else f"{kind}{s}", i))
                moved = True
        if not moved:
            return None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--time-limit", type=float, default=10)
    options = parser.parse_args()
    for data in json.loads(options.rows.read_text()):
        if not any(map(any, data["passes"])):
            continue
        row = Row(data)
        row.message_time = 1000 * max(row.message)
        found = next((starts for lag in itertools.count() if lag < 12 and (starts := timed(row, lag)) is not None), None)
        if found is None:
            print(row.label(), "order does not run")
            continue
        last = {"F": row.forward, "B": row.backward, "h": row.head, "e": row.embed, "g": row.embed_back}
        end = max(start + 1000 * (max(last[name[0]]) if len(name) == 1 else last[name[0]][int(name[1:])]) for start, name, _ in found) / 1e6
        print(f"{row.label():28} measured {row.measured:9.1f} predicted {end:9.1f} {100 * (end / row.measured - 1):+6.2f} %", flush=True)


main()
