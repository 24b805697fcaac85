# SPDX-License-Identifier: Apache-2.0
"""A profile as one HTML file that needs nothing from the network: a flame chart of a micro-batch, its memory, its layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from ostinato.profile.measure.owners import GRADIENTS, OPTIMIZER, PARAMETERS, RECEIVED, WORKSPACE, Recording
from ostinato.profile.views.table import milliseconds, size
from ostinato.profile.views.timeline import PHASES, LayerRun, Rank, Slice, ranks_of, runs_of

STYLE = """
:root { color-scheme: light dark; --paper: #fdfdfc; --ink: #1d2126; --soft: #667080; --line: #d8dce2; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --ink: #e4e7eb; --soft: #98a2b0; --line: #343b44; } }
body { margin: 0; padding: 24px; background: var(--paper); color: var(--ink);
       font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 20px; margin: 0 0 4px; } h2 { font-size: 15px; margin: 24px 0 6px; } p { color: var(--soft); margin: 0; }
.flame { position: relative; height: 78px; border-bottom: 1px solid var(--line); }
.flame div { position: absolute; height: 24px; overflow: hidden; white-space: nowrap; font-size: 11px; padding-left: 2px;
             box-sizing: border-box; border-right: 1px solid var(--paper); color: #10151b; border-radius: 2px; }
.forward { background: #6aa2e6; } .backward { background: #6cba7c; } .operator { background: #e2b04a; }
svg { width: 100%; height: 160px; border-bottom: 1px solid var(--line); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 14px 3px 0; text-align: right; border-bottom: 1px solid var(--line); font-weight: normal; }
th:first-child, td:first-child { text-align: left; } th { color: var(--soft); }
"""


def bar(part: Slice, level: int, kind: str, total: int, note: str) -> str:
    left, width = 100 * part.start / total, 100 * part.time / total
    title = escape(f"{part.name}: {part.time / 1e6:.3f} ms{note}")
    place = f"left:{left:.4f}%;width:{width:.4f}%;top:{26 * level}px"
    return f'<div class="{kind}" style="{place}" title="{title}">{escape(part.name)}</div>'


def flame(runs: list[LayerRun], total: int) -> Iterator[str]:
    """Phase, layers, operators, from the top."""
    start = 0
    for phase in PHASES:
        time = sum(run.slice.time for run in runs if run.phase == phase)
        yield bar(Slice(phase, start, time), 0, phase, total, f", {100 * time / total:.0f} % of a micro-batch")
        start += time
    for run in runs:
        yield bar(run.slice, 1, run.phase, total, f" {run.phase}, layer {run.row.index}")
        for part in run.operators:
            yield bar(part, 2, "operator", total, f" in {part.calls} calls")


COLOURS = {WORKSPACE: "#9aa4b2", RECEIVED: "#c3a16b", PARAMETERS: "#4b5a70", GRADIENTS: "#6f7f96", OPTIMIZER: "#8797ad"}
OTHER = "#b58ac0"


def memory(rank: Rank) -> Iterator[str]:
    """Stacked: what is always in use at the bottom, then layers in model order, then what they received and workspace."""
    highest = max(1, rank.peak())
    colours = COLOURS | {row.name: f"hsl({47 * row.index % 360} 55% 60%)" for row in rank.rows}
    for moment in (moment for moment in rank.moments() if moment.time):
        base, x, width = 100.0, 1000 * moment.start / rank.total, 1000 * moment.time / rank.total
        for owner, kept in moment.held:
            height = 100 * kept / highest
            base -= height
            title = escape(f"{owner}: {size(kept)}B {moment.when}")
            box = f'x="{x:.3f}" y="{base:.3f}" width="{width:.3f}" height="{height:.3f}"'
            yield f'<rect {box} fill="{colours.get(owner, OTHER)}"><title>{title}</title></rect>'


def source_of(rank: Rank) -> str:
    """Where the figures come from."""
    if rank.recording is None:
        return "as the profile's rows say"
    lost = f", {rank.recording.dropped} changes lost" if rank.recording.dropped else ""
    return f"recorded from the allocator in {len(rank.recording.changes)} changes{lost}, the optimizer's state computed"


def memory_of_rank(rank: Rank) -> Iterator[str]:
    layers = f"layers {rank.rows[0].index} to {rank.rows[-1].index}"
    owners = ", ".join(f"{owner} {size(held)}B" for owner, held in rank.static) or "nothing"
    yield f"<p>Rank {rank.number}, {layers}: at most {size(rank.peak())}B; always in use: {owners}; {source_of(rank)}</p>"
    yield '<svg viewBox="0 0 1000 100" preserveAspectRatio="none">'
    yield from memory(rank)
    yield "</svg>"


def layer_rows(profile: Any) -> Iterator[str]:
    columns = ("layer", "forward ms", "backward ms", "kept", "workspace", "parameters", "output")
    yield "<tr>" + "".join(f"<th>{name}</th>" for name in columns) + "</tr>"
    for row in profile.layers:
        sizes = (row.kept, max(row.forward_workspace, row.backward_workspace), row.parameters, row.output_bytes)
        cells = (row.name, milliseconds(row.forward), milliseconds(row.backward), *(f"{size(s)}B" for s in sizes))
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def html(profile: Any, ranks: int = 1, recordings: Sequence[Recording | None] = ()) -> str:
    runs = list(runs_of(profile))
    total = max(1, sum(run.slice.time for run in runs))
    on_ranks = (line for rank in ranks_of(profile, ranks, recordings) for line in memory_of_rank(rank))
    state = profile.completeness
    complete = "complete" if state.complete else f"NOT complete: {state.reason}"
    about = f"{profile.device_name}, a micro-batch of {profile.micro_batch_size}, timer {profile.timer}, {complete}"
    return "\n".join([
        "<!doctype html>", '<html lang="en">', '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(profile.model)} – profile</title>", f"<style>{STYLE}</style>",
        f"<h1>{escape(profile.model)}</h1>", f"<p>{escape(about)}</p>",
        f"<h2>One micro-batch: {total / 1e6:.3f} ms</h2>",
        "<p>Phase, layers, and in each layer its operators by falling self time. Point at a bar for its figures.</p>",
        '<div class="flame">', *flame(runs, total), "</div>",
        "<h2>Memory of that micro-batch</h2>",
        "<p>By owner, over the same time. Point at a box for its figure.</p>", *on_ranks,
        "<h2>Layers</h2>", "<table>", *layer_rows(profile), "</table>", "</html>", "",
    ])  # fmt: skip
