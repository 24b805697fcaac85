# SPDX-License-Identifier: Apache-2.0
"""A profile as tables for a terminal, and as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ostinato.errors import printable, size
from ostinato.profile.measure.by_size import worst_between
from ostinato.profile.measure.check import StageCheck, launch_share

TOP_OPERATORS = 8
MOSTLY_LAUNCHING = 0.5


def plain(name: str) -> str:
    """A name as rich shows it unchanged."""
    return escape(printable(name))


def milliseconds(spread: Any) -> str:
    return f"{spread.median / 1e6:.3f}" if spread.repeats else "-"


def unrest(row: Any) -> float:
    """Half the distance between the quartiles, in percent of the median; of the forward or the backward."""
    return max(50 * (s.high - s.low) / max(1, s.median) for s in (row.forward, row.backward))


def short_size(count: int) -> str:
    """For columns of bytes: 912.4Ki."""
    return size(count).removesuffix("B").replace(" ", "")


def weight_of_layers(profile: Any) -> dict[int, int]:
    """How many layers of the model each measured layer stands for, itself included."""
    weights: dict[int, int] = {}
    for row in profile.layers:
        measured = row.index if row.same_as < 0 else row.same_as
        weights[measured] = weights.get(measured, 0) + 1
    return weights


def flops_of_layers(profile: Any) -> dict[int, int]:
    """Of a forward and a backward of each measured layer, as far as they are known; without those where none
    are."""
    flops: dict[int, int] = {}
    for row in profile.operators:
        if row.flops is not None:
            flops[row.layer] = flops.get(row.layer, 0) + row.flops
    return flops


def billions(count: int | None) -> str:
    return "-" if count is None else f"{count / 1e9:.3g}"


def layer_table(profile: Any) -> Table:
    """One row a measured layer, with how often the model has it."""
    title = (
        f"{plain(profile.model)} on {plain(profile.device_name)}, a micro-batch of {profile.micro_batch_size}"
    )
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("layer", overflow="fold")
    for column in ("n", "fwd ms", "bwd ms", "+-", "kept B", "work B", "params B", "output B"):
        table.add_column(column, justify="right", no_wrap=True)
    weights = weight_of_layers(profile)
    for row in (row for row in profile.layers if row.same_as < 0):
        workspace = max(row.forward_workspace, row.backward_workspace)
        table.add_row(
            plain(row.name),
            str(weights[row.index]),
            milliseconds(row.forward),
            milliseconds(row.backward),
            f"{unrest(row):.0f} %",
            *map(short_size, (row.kept, workspace, row.parameters, row.output_bytes)),
        )
    return table


def operator_table(profile: Any) -> Table:
    """The operators that take most of a micro-batch, over all layers."""
    weights = weight_of_layers(profile)
    totals: dict[Any, Any] = {}
    for row in profile.operators:
        times = weights.get(row.layer, 0)
        time, calls, flops = totals.get((row.name, row.phase), (0, 0, None))
        if row.flops is not None:
            flops = (flops or 0) + times * row.flops
        totals[row.name, row.phase] = time + times * row.self_time.median, calls + times * row.calls, flops
    title = "Operators by self time of a micro-batch"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("operator")
    table.add_column("direction")
    for column in ("calls", "self ms", "GFLOP"):
        table.add_column(column, justify="right")
    longest = sorted(totals.items(), key=lambda item: (-item[1][0], item[0]))[:TOP_OPERATORS]
    for (name, phase), (time, calls, flops) in longest:
        table.add_row(plain(name), phase, str(calls), f"{time / 1e6:.3f}", billions(flops))
    return table


def rate(bytes_per_second: float) -> str:
    """12.34 GB/s, or 3.45 MB/s where that is more than it."""
    giga = bytes_per_second / 1e9
    return f"{giga:.2f} GB/s" if giga >= 0.1 else f"{1e3 * giga:.2f} MB/s"


def transfer_lines(profile: Any) -> list[str]:
    if not profile.transfers:
        return ["transfers: not measured (placements made from this profile will have free transfers)"]
    first = profile.transfers[0]
    if first.backend == "given":
        bytes_cost = (
            f" + bytes / {rate(first.bytes_per_second)}" if first.bytes_per_second else ", bytes cost nothing"
        )
        return [f"transfer, as given: {first.latency / 1e3:.12g} us{bytes_cost}"]
    lines = [_transfer_line(row) for row in profile.transfers]
    if len(profile.transfers) == 2:
        lines.append("one pair was measured, and represents all")
    return lines


def _transfer_line(row: Any) -> str:
    of_size = (
        f" + bytes / {rate(row.bytes_per_second)}"
        if row.bytes_per_second
        else ", whatever the size: times vary more than sizes, so measure again"
    )
    over = f" over {row.backend}" if row.backend else ""
    return (
        f"transfer {row.source} -> {row.target}{over}: {row.latency / 1e3:.0f} us{of_size}, off by at most "
        f"{row.residual * 100:.0f} %"
    )


def block_lines(profile: Any) -> list[str]:
    """What a rank costs on top of its layers; [] if that was not measured."""
    rank = profile.rank
    lines = []
    if rank.forward or rank.backward:
        lines.append(
            f"a block takes {rank.forward / 1e3:.0f} us forward and {rank.backward / 1e3:.0f} us backward on top of its layers"
        )
    if rank.average and abs(rank.average - 10**6) >= 5000:  # else 1.00 times
        lines.append(
            f"on average layers take {rank.average / 1e6:.2f} times their medians, which plans take into account"
        )
    if rank.read:
        lines.append(f"a batch takes {rank.read / 1e3:.0f} us to read")
    if step := sum(row.step_time for row in profile.layers):
        lines.append(f"the optimizer's step takes {step / 1e6:.2f} ms for all layers")
    if rank.step_time:
        lines.append(f"a step takes {rank.step_time / 1e6:.2f} ms on top of blocks and optimizer")
    return lines


def unrest_lines(profile: Any) -> list[str]:
    """Where the machine was too busy for the times to be trusted."""
    return [profile.noise_warning] if profile.noise else []


def timer_lines(profile: Any) -> list[str]:
    """Which clock, where it is not the best that such a device has."""
    return [f"times are from {profile.timer}: {profile.timer_note}"] if profile.timer_note else []


def completeness_line(profile: Any) -> str:
    state = profile.completeness
    if state.complete and profile.timer == "cupti":
        return f"complete: the profile has all {state.expected} operators and launches that were counted"
    if state.complete:
        return f"complete: the profile has all {state.expected} operators that torch's dispatcher saw"
    return f"NOT complete: {state.reason}"


def launch_lines(profile: Any) -> list[str]:
    """Where launching operators takes most of the time, another schedule gains little. No advice where the
    times are not known."""
    share = launch_share(profile)
    if share <= MOSTLY_LAUNCHING or profile.noise:
        return []
    return [
        f"{share * 100:.0f} % of a micro-batch goes into launching operators, not running them: larger micro-batches "
        "or fused operators will gain more than a schedule"
    ]


def off(predicted: float, measured: int, drift: float, noise: str = "") -> str:
    """How far a prediction is from what was measured, the machine's own change taken out. Of times nothing
    where they are not known."""
    if noise:
        return "?"
    return f"{100 * (predicted * drift / measured - 1):+.1f} %" if measured else "-"


def check_table(profile: Any, checks: Sequence[StageCheck]) -> Table:
    title = "Stages measured as a whole, and the error of the profile (rows: of layers, ops: of operators)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("layers", no_wrap=True)
    for column in ("fwd ms", "rows", "ops", "bwd ms", "rows", "ops", "kept", "work", "drift"):
        table.add_column(column, justify="right", no_wrap=True)
    for check in checks:
        measured, rows = check.measured, check.from_layers
        table.add_row(
            f"{check.first} to {check.last - 1}",
            f"{measured.forward / 1e6:.3f}",
            off(rows.forward, measured.forward, check.drift, profile.noise),
            off(check.operators_forward, measured.forward, check.drift, profile.noise),
            f"{measured.backward / 1e6:.3f}",
            off(rows.backward, measured.backward, check.drift, profile.noise),
            off(check.operators_backward, measured.backward, check.drift, profile.noise),
            off(rows.kept, measured.kept, 1),
            off(rows.workspace, measured.workspace, 1),
            f"{100 * (check.drift - 1):+.0f} %",
        )
    return table


def size_lines(profile: Any) -> list[str]:
    """The time of a micro-batch at each size, and the error of straight lines between the sizes."""
    rows = profile.sizes
    if not rows:
        return []
    at_each = ", ".join(f"{row.size}: {(sum(row.forward) + sum(row.backward)) / 1e6:.2f} ms" for row in rows)
    error = (
        f"; sizes between two measured ones are within {worst_between(rows):.1%} of the line through them"
        if len(rows) > 2
        else ""
    )
    return [f"Tokens and forward with backward: {at_each}{error}"]


def show(profile: Any, console: Console) -> None:
    console.print(layer_table(profile))
    console.print(operator_table(profile))
    notes = (
        size_lines(profile)
        + transfer_lines(profile)
        + block_lines(profile)
        + unrest_lines(profile)
        + launch_lines(profile)
        + timer_lines(profile)
    )
    for line in (*notes, completeness_line(profile)):
        console.print(line, highlight=False)


def summary(profile: Any, path: str) -> dict[str, Any]:
    """Sums over all layers of the model, for one micro-batch."""
    rows = profile.layers
    return {
        "profile": path,
        "model": profile.model,
        "model_sha256": profile.model_sha256,
        "layers": len(rows),
        "measured_layers": sum(row.same_as < 0 for row in rows),
        "micro_batch_size": profile.micro_batch_size,
        "forward": sum(row.forward.median for row in rows),
        "backward": sum(row.backward.median for row in rows),
        "kept": sum(row.kept for row in rows),
        "parameters": sum(row.parameters for row in rows),
        "flops": sum(
            times * flops_of_layers(profile).get(index, 0)
            for index, times in weight_of_layers(profile).items()
        ),
        "operators": len(profile.operators),
        "transfers": len(profile.transfers),
        "block_forward": profile.rank.forward,
        "block_backward": profile.rank.backward,
        "average": profile.rank.average,
        "read": profile.rank.read,
        "step_time": sum(row.step_time for row in profile.layers),
        "beside_step_time": profile.rank.step_time,
        "sizes": [
            {"size": row.size, "forward": sum(row.forward), "backward": sum(row.backward)}
            for row in profile.sizes
        ],
        "sizes_error": worst_between(profile.sizes),
        "timer": profile.timer,
        "noise": profile.noise,
        "complete": profile.completeness.complete,
        "reason": profile.completeness.reason,
    }
