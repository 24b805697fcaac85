# SPDX-License-Identifier: Apache-2.0
"""A profile as one HTML file that needs nothing from the network: a flame chart of a micro-batch, its memory,
its layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from ostinato.errors import counted, size
from ostinato.profile.measure.owners import GRADIENTS, OPTIMIZER, PARAMETERS, RECEIVED, WORKSPACE, Recording
from ostinato.profile.views.table import milliseconds
from ostinato.profile.views.timeline import PHASES, LayerRun, RankTimeline, Slice, ranks_of, runs_of

HERE = Path(__file__).parent
TICKS = 10  # of the axis before anybody zooms, at most


def bar(part: Slice, level: int, kind: str, total: int, note: str) -> str:
    left, width = 100 * part.start / total, 100 * part.time / total
    title = escape(f"{part.name}: {part.time / 1e6:.3f} ms{note}")
    place = f"left:{left:.4f}%;width:{width:.4f}%;top:{26 * level}px"
    return f'<div class="{kind}" style="{place}" title="{title}"><span>{escape(part.name)}</span></div>'


def flame(runs: list[LayerRun], total: int) -> Iterator[str]:
    """Phase, layers, operators, from the top."""
    start = 0
    for phase in PHASES:
        time = sum(run.slice.time for run in runs if run.phase == phase)
        yield bar(
            Slice(phase, start, time), 0, phase, total, f", {100 * time / total:.0f} % of a micro-batch"
        )
        start += time
    for run in runs:
        yield bar(run.slice, 1, run.phase, total, f" {run.phase}, layer {run.row.index}")
        for part in run.operators:
            yield bar(part, 2, "operator", total, f" in {counted(part.calls, 'call')}")


COLOURS = {
    WORKSPACE: "#cbc3ba",
    RECEIVED: "#b8904f",
    PARAMETERS: "#4b5a70",
    GRADIENTS: "#75859c",
    OPTIMIZER: "#7fa0d6",
}
OTHER = "#b58ac0"
LAYERS_IN_LEGEND = 16


def colours_of(rows: Sequence[Any]) -> dict[str, str]:
    """Colours by owner: of what every rank has, and of layers."""
    return COLOURS | {row.name: f"hsl({47 * row.index % 360} 55% 60%)" for row in rows}


def nice(length: float) -> int:
    """The smallest 1, 2 or 5 times a power of ten that is at least the length, and at least 1."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if power * factor >= length:
                return power * factor
        power *= 10


def axis(total: int) -> Iterator[str]:
    """Time marks; the script draws new ones on zoom."""
    tick = nice(total / TICKS)
    digits = max(0, 7 - len(str(tick)))  # of milliseconds, so that neighbours read otherwise
    for time in range(0, total + 1, tick):
        yield f'<span style="left:{100 * time / total:.4f}%">{time / 1e6:.{digits}f} ms</span>'


def legend(entries: Iterable[tuple[str, str]]) -> str:
    swatches = (f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for colour, name in entries)
    return f'<p class="legend">{"".join(swatches)}</p>'


def owners_legend(ranks: Sequence[RankTimeline]) -> str:
    """Owners to draw: what every rank has, then layers in model order, as many as can be told apart."""
    seen = {owner for rank in ranks for moment in rank.moments() for owner, kept in moment.held if kept}
    colours = colours_of([row for rank in ranks for row in rank.rows])
    layers = [owner for owner in colours if owner in seen and owner not in COLOURS]
    named = [owner for owner in COLOURS if owner in seen] + layers[:LAYERS_IN_LEGEND]
    entries = [(colours[owner], owner) for owner in named]
    if len(layers) > LAYERS_IN_LEGEND:
        entries.append(("transparent", f"and {counted(len(layers) - LAYERS_IN_LEGEND, 'more layer')}"))
    if seen - set(colours):
        entries.append((OTHER, "other"))
    return legend(entries)


def memory(rank: RankTimeline, highest: int) -> Iterator[str]:
    """Up to `highest`, as for every rank. Stacked: what is always in use at the bottom, then layers in model
    order, then what they received and workspace."""
    colours = colours_of(rank.rows)
    for moment in (moment for moment in rank.moments() if moment.time):
        base, x, width = 100.0, 1000 * moment.start / rank.total, 1000 * moment.time / rank.total
        for owner, kept in moment.held:
            height = 100 * kept / highest
            base -= height
            title = escape(f"{owner}: {size(kept)} {moment.when}")
            box = f'x="{x:.3f}" y="{base:.3f}" width="{width:.3f}" height="{height:.3f}"'
            yield f'<rect {box} fill="{colours.get(owner, OTHER)}"><title>{title}</title></rect>'


def source_of(rank: RankTimeline) -> str:
    """Where the figures come from."""
    if rank.recording is None:
        return "as the profile's rows say"
    lost = f", {counted(rank.recording.dropped, 'change')} lost" if rank.recording.dropped else ""
    return f"recorded from the allocator in {counted(len(rank.recording.changes), 'change')}{lost}; the optimizer's state is computed"


def memory_of_rank(rank: RankTimeline, highest: int) -> Iterator[str]:
    layers = f"layers {rank.rows[0].index} to {rank.rows[-1].index}"
    owners = ", ".join(f"{owner} {size(held)}" for owner, held in rank.static) or "nothing"
    yield f"<p>Rank {rank.number}, {layers}: at most {size(rank.peak())}; always in use: {owners}; {source_of(rank)}</p>"
    yield '<div class="memory"><svg shape-rendering="crispEdges" viewBox="0 0 1000 100" preserveAspectRatio="none">'
    yield from memory(rank, highest)
    levels = "".join(
        f'<span style="bottom:{share}%">{size(highest * share // 100)}</span>' for share in (0, 50, 100)
    )
    yield f'</svg><div class="levels">{levels}</div></div>'


def layer_rows(profile: Any) -> Iterator[str]:
    columns = ("layer", "forward ms", "backward ms", "kept", "workspace", "parameters", "output")
    yield "<tr>" + "".join(f"<th>{name}</th>" for name in columns) + "</tr>"
    for row in profile.layers:
        sizes = (
            row.kept,
            max(row.forward_workspace, row.backward_workspace),
            row.parameters,
            row.output_bytes,
        )
        cells = (row.name, milliseconds(row.forward), milliseconds(row.backward), *map(size, sizes))
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


PHASE_LEGEND = [
    ("var(--forward)", "forward"),
    ("var(--backward)", "backward"),
    ("var(--operator)", "operators"),
]


def html(profile: Any, ranks: int = 1, recordings: Sequence[Recording | None] = ()) -> str:
    runs = list(runs_of(profile))
    total = max(1, sum(run.slice.time for run in runs))
    drawn = ranks_of(profile, ranks, recordings)
    highest = max(1, *(rank.peak() for rank in drawn))
    state = profile.completeness
    complete = "complete" if state.complete else f"NOT complete: {state.reason}"
    about = f"{profile.device_name}, a micro-batch of {profile.micro_batch_size}, timer {profile.timer}, {complete}"
    return "\n".join([
        "<!doctype html>", '<html lang="en">', '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(profile.model)} – profile</title>", f"<style>{(HERE / 'page.css').read_text()}</style>",
        f"<h1>{escape(profile.model)}</h1>", f"<p>{escape(about)}</p>",
        f"<h2>One micro-batch: {total / 1e6:.3f} ms</h2>",
        "<p>Phases, layers, and in each layer its operators by descending self time; below, the memory of each rank by owner over "
        "the same time. Point at a bar or a box, or tap it, for its figures. Ctrl and the wheel, +, &minus; and two fingers zoom.</p>",
        '<p class="tools"><button type="button" id="in">+</button> <button type="button" id="out">&minus;</button> '
        '<button type="button" id="all">all</button> <output id="told"></output></p>',
        legend(PHASE_LEGEND), owners_legend(drawn),
        f'<div id="plots" tabindex="0" data-total="{total}"><div id="wide">',
        '<div class="axis" id="axis">', *axis(total), "</div>",
        '<div class="flame">', *flame(runs, total), "</div>",
        *(line for rank in drawn for line in memory_of_rank(rank, highest)), "</div></div>",
        "<h2>Layers</h2>", '<div class="scroll"><table>', *layer_rows(profile), "</table></div>",
        f"<script>{(HERE / 'page.js').read_text()}</script>", "</html>", "",
    ])  # fmt: skip
