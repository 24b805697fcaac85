# SPDX-License-Identifier: Apache-2.0
"""A profile as a page and as a trace: every figure in it is the profile's."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise

import pytest
import torch
from torch import nn

from ostinato.errors import size
from ostinato.profile import Job, profile_layers
from ostinato.profile.views.page import html
from ostinato.profile.views.perfetto import perfetto
from ostinato.profile.views.timeline import ranks_of, runs_of
from support.pages import evaluate, look


@pytest.fixture(scope="module")
def profile():
    layers = [nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 2)]
    return profile_layers(
        Job(layers=layers, inputs=torch.randn(4, 8), name="a <b> & c", repeats=2, warm_up=1)
    )


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.titles, self.links = Counter(), [], []

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.links += [value for name, value in attributes if name in ("src", "href")]
        self.titles += [value for name, value in attributes if name == "title"]


def test_a_micro_batch_runs_forwards_then_backwards(profile):
    runs = list(runs_of(profile))
    assert [run.row.index for run in runs] == [0, 1, 2, 3, 3, 2, 1, 0]
    for run, following in pairwise(runs):
        assert run.slice.start + run.slice.time == following.slice.start
        assert sum(part.time for part in run.operators) <= run.slice.time
    fullest = runs[3]
    assert dict(fullest.held) == {row.name: row.kept for row in profile.layers if row.kept}
    assert runs[-1].held == []


def test_the_page_has_every_layer_and_asks_nothing_of_the_network(profile):
    page = Page()
    text = html(profile)
    page.feed(text)
    assert page.links == [] and page.tags["script"] == 1 and "http" not in text and "url(" not in text
    assert "a &lt;b&gt; &amp; c" in text and "<b>" not in text
    assert page.tags["tr"] == 1 + len(profile.layers)
    for row in profile.layers:
        assert sum(title.startswith(f"{row.name}:") for title in page.titles) == 2  # forward and backward


def test_the_page_has_axes_and_a_legend(profile):
    text = html(profile, 2)
    total = sum(row.forward.median + row.backward.median for row in profile.layers)
    marks = re.findall(r'<span style="left:([\d.]+)%">([\d.]+) ms</span>', text)
    assert 3 <= len(marks) <= 11 and marks[0] == ("0.0000", marks[0][1])
    for left, milliseconds in marks:
        assert float(milliseconds) * 1e6 == pytest.approx(float(left) / 100 * total, abs=total / 1000)
    assert len({milliseconds for _, milliseconds in marks}) == len(marks)
    peaks = [size(rank.peak()) for rank in ranks_of(profile, 2)]
    assert any(peak.endswith(" KiB") for peak in peaks) and not re.search(r"[\d.]+[KMG]B\b", text)
    assert re.findall(r": at most (.*?);", text) == peaks
    highest = size(max(rank.peak() for rank in ranks_of(profile, 2)))
    assert re.findall(r'<span style="bottom:100%">(.*?)</span>', text) == [highest] * 2  # on one scale
    named = re.findall(r'<i style="background:.*?"></i>(.*?)</span>', text)
    kept = [row.name for row in profile.layers if row.kept]
    assert (
        named[:3] == ["forward", "backward", "operators"]
        and "parameters" in named
        and [n for n in named if n in kept] == kept
    )


def test_the_legend_ends_where_colours_are_no_longer_told_apart():
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(20)]
    many = profile_layers(Job(layers=layers, inputs=torch.randn(4, 8), repeats=1, warm_up=0))
    named = re.findall(r'<i style="background:.*?"></i>(.*?)</span>', html(many))
    assert all(row.kept for row in many.layers) and "and 4 more layers" in named


def test_zooming_keeps_what_is_pointed_at(profile, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(html(profile))
    whole, at, close, least = evaluate(page, """(() => {
      const marks = () => axis.children.map((mark) => [mark.style.left, mark.textContent]), whole = marks();
      zoomTo(8, 250);
      const at = plots.scrollLeft, close = marks();
      zoomTo(0.1);
      return [whole, at, close, zoom];
    })()""")  # fmt: skip
    assert least == 1 and at + 250 == 0.25 * 8000  # a quarter of the time stays 250 pixels from the left
    assert len({text for _, text in close}) == len(close) > len(whole) > 3


@pytest.mark.slow  # test_zooming_keeps_what_is_pointed_at has Node run the page's script
@pytest.mark.parametrize("width", [400, 1400])
def test_in_a_browser(profile, tmp_path, width):
    """No wider than the window; the bars are where the axis says; zoomed, the plots scroll."""
    page = tmp_path / "page.html"
    page.write_text(html(profile, 2))
    over, ends, zoomed = look(page, """(() => {
      const right = (query) => Math.max(...[...document.querySelectorAll(query)].map((part) => part.getBoundingClientRect().right));
      const over = Math.max(0, document.documentElement.scrollWidth - innerWidth), ends = [right(".flame div"), right("rect"), right("#plots")];
      zoomTo(4);
      return [over, ends, plots.scrollWidth / plots.clientWidth];
    })()""", width=width, dark=True)  # fmt: skip
    assert over == 0 and ends == pytest.approx([ends[2]] * 3, abs=2) and zoomed == pytest.approx(4, abs=0.1)


def test_the_trace_adds_up(profile):
    events = json.loads(perfetto(profile))["traceEvents"]
    layers = [event for event in events if event["ph"] == "X" and event["tid"] == 0]
    assert sum(event["dur"] for event in layers) * 1e3 == pytest.approx(
        sum(row.forward.median + row.backward.median for row in profile.layers)
    )
    held = [event["args"] for event in events if event["ph"] == "C" and event["name"] == "memory"]
    always = sum(row.parameters + row.gradients + row.optimizer_state for row in profile.layers)
    after_forward = held[2 * len(profile.layers) - 1]
    assert sum(after_forward.values()) == always + sum(row.kept for row in profile.layers)
    assert sum(held[-1].values()) == always


def test_every_rank_holds_what_its_own_layers_hold(profile):
    ranks = ranks_of(profile, 2)
    assert [row.index for rank in ranks for row in rank.rows] == [0, 1, 2, 3]
    for rank in ranks:
        names = {row.name for row in rank.rows}
        kept = sum(row.kept for row in rank.rows)
        assert dict(rank.static)["parameters"] == sum(row.parameters for row in rank.rows)
        assert max(sum(size for _, size in run.held) for run in rank.runs) == kept
        assert {owner for run in rank.runs for owner, _ in run.held} <= names
        for run in rank.runs:
            owners = rank.held_during(run)
            assert sum(size for _, size in owners) <= rank.peak()
            if run.phase == "backward":  # its own bytes are still there, and its workspace comes on top
                before = rank.held_always() + run.row.kept + run.workspace
                assert sum(size for _, size in owners) == before + sum(size for _, size in run.held)
    trace = json.loads(perfetto(profile, 2))["traceEvents"]
    assert {event["pid"] for event in trace} == {0, 1}
    assert html(profile, 2).count("<svg") == 2


def test_a_model_that_keeps_nothing_has_a_page(profile):
    empty = profile_layers(Job(layers=[nn.Identity()], inputs=torch.randn(2), repeats=1, warm_up=0))
    assert "at most 0 B; always in use: nothing" in html(empty)
