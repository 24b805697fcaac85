# SPDX-License-Identifier: Apache-2.0
"""The page of `ostinato show --html`: its script runs, in Node and in a browser where there is one, and what
it computes is right."""

import hashlib
import json
import random
import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.commands import output_of
from support.pages import evaluate, look

PROFILE = Path(__file__).parents[3] / "examples" / "notebooks" / "gpt.profile.json"
SVG = "{http://www.w3.org/2000/svg}"
WORDS_OF_MARKUP = '</script><b>&"\\'


def make(folder, shape, micro_batches, *options, method=("--time-limit", "2")):
    """Paths of a plan and its placement."""
    plan, placement = folder / "plan.json", folder / "placement.toml"
    output_of("placement", shape, *options, "--output", placement)
    output_of("search", placement, "--micro-batches", micro_batches, *method, "--output", plan)
    return plan, placement


@pytest.fixture(scope="module")
def wave(tmp_path_factory):
    """A plan with chunks, halves of backwards, transfers and a limit, zb-v below it, and a measured step that
    took 1.1 times as long."""
    folder = tmp_path_factory.mktemp("wave")
    options = "--devices 4 --weight 1 --latency 0.2 --bytes 1 --capacity 9 --workspace 0.5"
    plan, placement = make(folder, "wave", 10, *options.split())
    write_trace(folder / "trace", plan, placement, 1.1)
    output_of(
        "show",
        plan,
        placement,
        "--html",
        folder / "page.html",
        "--against",
        "zb-v",
        "--trace",
        folder / "trace",
    )
    return folder / "page.html"


def write_trace(folder, plan, placement, factor):
    """As a run leaves one that took `factor` times as long in everything."""
    folder.mkdir()
    text, of = plan.read_bytes(), tomllib.loads(placement.read_text())
    blocks, unit = {b["name"]: b for b in of["blocks"]}, {"ns": 1, "us": 1000}[of["time_unit"]]
    letters = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}
    of_lanes = {"offload": ("R", "O"), "load": (None, "L")}  # without and with a lane
    ranks = {}
    for step in json.loads(text)["schedule"]:
        block = blocks[step["block"]]
        begin, length = step["start"], round(unit * block["time"])
        lane = block.get("lane", "")
        action = letters.get(block["kind"]) or of_lanes[block["kind"]][bool(lane)]
        for device in block["devices"] if action else []:
            ranks.setdefault(device, []).append({
                "text": "", "action": action, "stage": 0, "micro_batch": step["micro_batch"], "lane": lane,
                "planned_start": begin, "planned_end": begin + length,
                "start": int(begin * factor), "end": int((begin + length) * factor),
            })  # fmt: skip
    head = {
        "format": "ostinato-trace/1",
        "step": 1,
        "step_seconds": [1.0],
        "makespan": json.loads(text)["makespan"],
    }
    for rank, instructions in ranks.items():
        about = {
            "rank": rank,
            "device": rank,
            "plan_sha256": hashlib.sha256(text).hexdigest(),
            "instructions": instructions,
        }
        (folder / f"rank-{rank}.json").write_text(json.dumps(head | about))


EVERY_VIEW = """(() => {
  const images = [];
  for (const colours of ["kind", "stage"]) for (const transfers of ["none", "pointed", "all"]) for (const critical of [false, true]) {
    Object.assign(view, { colours, transfers, critical });
    layAndStyle();
    for (const looked of [null, shownPlans[0].rows[0][5]]) {
      held = looked;
      for (const [begin, end] of [[0, total], [total / 3, total / 3 + 50], [total * 0.9, total]]) {
        show(begin, end);
        images.push(svgText());
      }
    }
  }
  savePng();
  return images;
})()"""


def test_every_view_is_drawn_and_is_an_image(wave):
    images = evaluate(wave, EVERY_VIEW)
    assert len(images) == 72
    for image in images:
        root = ElementTree.fromstring(image)
        assert root.tag == f"{SVG}svg" and "NaN" not in image and "undefined" not in image
        assert {"device0", "device3"} <= {text.text for text in root.iter(f"{SVG}text")}


def test_what_ran_on_a_lane_is_in_its_row(tmp_path):
    plan, placement = make(
        tmp_path, "looped", 4, "--chunks", 1, "--devices", 2, "--capacity", 2, "--offload", "0.5,0"
    )
    write_trace(tmp_path / "trace", plan, placement, 1.5)
    output_of("show", plan, placement, "--html", tmp_path / "page.html", "--trace", tmp_path / "trace")
    rows = evaluate(
        tmp_path / "page.html",
        "measured.map((row) => row.computes.map((step) => step.action + (step.planned ? step.microBatch : 'unplanned')))",
    )
    assert sorted(rows[2]) == [f"{action}{m}" for action in "LO" for m in range(4)]
    assert all(sorted(row) == [f"{action}{m}" for action in "BF" for m in range(4)] for row in rows[:2])


def test_memory_rises_to_the_peak_that_the_plan_says(wave):
    pairs = evaluate(
        wave, "data.plans.flatMap((plan) => plan.devices.map((d, i) => [memoryCurve(plan, i).peak, d.peak]))"
    )
    assert len(pairs) == 8 and all(drawn == said > 0 for drawn, said in pairs)


def test_cells_share_the_time_rightly(wave):
    """Where blocks are narrower than pixels: of any stretch of time, what each kind takes of it."""
    random.seed(5)
    plan = json.loads(re.search(r'id="data">(.*?)</script>', wave.read_text())[1])["plans"][0]
    stretches = sorted(random.sample(range(plan["makespan"]), 60))
    windows = [*zip(stretches[::2], stretches[1::2], strict=True), (0, plan["makespan"])]
    shares = evaluate(wave, f"""{json.dumps(windows)}.map(([a, b]) => {{
      const sums = workSums(shownPlans[0], 1, "kind", colourKey);
      return Object.fromEntries(workWithin(shownPlans[0].rows[1], sums, a, b, colourKey).map((work, c) => [sums.colours[c], work]));
    }})""")  # fmt: skip
    for (begin, end), found in zip(windows, shares, strict=True):
        expected = dict.fromkeys(found, 0)
        for block, _, start in plan["steps"]:
            row = plan["blocks"][block]
            if 1 in row["devices"]:
                expected[row["kind"]] += max(0, min(end, start + row["time"]) - max(begin, start))
        assert found == expected


def test_what_binds_leads_from_the_begin_to_the_end(wave):
    chains = evaluate(
        wave,
        "data.plans.map((plan) => [plan.makespan, plan.chain.map((s) => [s.start, s.end, s.link.transfer + s.link.idle])])",
    )
    for makespan, chain in chains:
        assert chain[0][0] == 0 and chain[-1][1] == makespan
        for (_, end, _), (start, _, between) in zip(chain, chain[1:], strict=False):
            assert end + between == start


def test_measured_steps_find_their_plan(wave):
    found = evaluate(
        wave,
        "measured.flatMap((row) => row.computes.map((s) => [s.start, s.planned.start, s.planned.microBatch - s.microBatch]))",
    )
    assert len(found) == 10 * 24
    assert all(start == int(planned * 1.1) and other == 0 for start, planned, other in found)
    told = evaluate(wave, "describe(shownPlans[0].rows[2][7])")
    assert "measured " in told and "1.10 of the plan" in told


def test_a_measured_row_says_how_much_longer_it_took(wave):
    assert evaluate(wave, "measured.map((row) => shareOf(row.computes))") == ["1.10"] * 4
    texts = evaluate(wave, TEXTS.replace("SPANS", "[[0, total], [0, total / 20]]"))
    assert texts[0].count("measured ×1.10") == 4
    assert any(re.fullmatch(r"s\d\.F \d · 1\.\d* µs ×1\.\d\d", text) for text in texts[1]), texts[1]


TEXTS = """SPANS.map(([begin, end]) => {
  show(begin, end);
  const texts = [], pen = new SvgPen(1000, 800, "");
  pen.text = (x, y, text) => texts.push(text);
  draw(pen, frameOf(1000, 0, axisHeight + lanesHeight));
  return texts;
})"""


def test_labels_of_one_figure_are_of_one_kind(wave):
    """Whether they name the block, its kind, or the micro-batch alone, depends on the scale."""
    spans = "[1, 4, 12, 40].map((times) => [total / 3, total / 3 + total / times])"
    seen = set()
    for texts in evaluate(wave, TEXTS.replace("SPANS", spans)):
        labels = [text.split(" ×")[0] for text in texts]
        kinds = {
            kind
            for kind, form in {"number": r"\d+", "short": r"[FIW]\d+[ab]", "name": r"s\d\.[FIW] .*"}.items()
            if any(re.fullmatch(form, label) for label in labels)
        }
        assert len(kinds) == 1, labels
        seen |= kinds
    assert seen == {"number", "short", "name"}


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A plan from a profile, with what it is compared with, and without limits of memory."""
    folder = tmp_path_factory.mktemp("planned")
    files = ("--output", folder / "plan.json", "--placement-output", folder / "placement.toml")
    output_of("plan", PROFILE, "--devices", 4, "--micro-batches", 8, "--only", "chunks", *files)
    output_of("show", folder / "plan.json", "--html", folder / "page.html")
    return folder / "page.html"


def test_the_first_tile_is_the_gain(planned):
    plan = json.loads(planned.with_name("plan.json").read_text())
    tile = evaluate(planned, 'byId("figures").children[0].children.map((part) => part.textContent)')
    gain = plan["baselines"][0]["makespan"] / plan["makespan"]
    assert tile == [f"{gain:.2f} times as fast", "as 1F1B on the best stages"]


def test_memory_of_all_devices_has_one_scale(planned):
    heights, peaks = evaluate(planned, """(() => {
      const heights = [], pen = new SvgPen(1000, 800, "");
      pen.area = (points) => heights.push(points[0][1] - Math.min(...points.map(([x, y]) => y)));
      draw(pen, frameOf(1000, 0, axisHeight + lanesHeight));
      return [heights, first.devices.map((device) => device.peak)];
    })()""")  # fmt: skip
    scales = [height / peak for height, peak in zip(heights, peaks, strict=True)]
    assert len(set(peaks)) > 1 and scales == pytest.approx([scales[0]] * 4)


def test_pointing_finds_the_block_under_it(wave):
    """In the middle of every step of a device."""
    missed = evaluate(wave, """shownPlans.flatMap((plan) => plan.rows[3].filter((step) => {
      const frame = frameOnPage(), lane = laneAt.get(plan)[3];
      const event = { clientX: xOf(frame, (step.start + step.end) / 2), clientY: yOf(frame, lane) + lane.height / 2 };
      return stepUnder(event) !== step;
    }).map((step) => step.block.name))""")  # fmt: skip
    assert missed == []


def test_fingers_and_keys_move_and_zoom(wave):
    """Two fingers that part double the scale around their middle; one moves; 0 shows all."""
    spans = evaluate(wave, """(() => {
      const { pointerdown, pointermove, pointerup, keydown } = canvas.handlers, seen = [];
      const finger = (id, x) => ({ pointerId: id, clientX: x, clientY: 300, pointerType: "touch" });
      pointerdown(finger(1, 400)); pointerdown(finger(2, 600));
      pointermove(finger(1, 300)); pointermove(finger(2, 700));
      seen.push(total / (view.to - view.from));
      pointerup(finger(2, 700)); pointerup(finger(1, 300));
      const before = view.from;
      pointerdown(finger(1, 500)); pointermove(finger(1, 450)); pointerup(finger(1, 450));
      seen.push(view.from > before, held);
      keydown({ key: "0", preventDefault() {} });
      seen.push(view.from, view.to - total);
      return seen;
    })()""")  # fmt: skip
    assert spans == [pytest.approx(2), True, None, 0, 0]


def test_names_that_look_like_markup_stay_names(tmp_path):
    plan, placement = make(tmp_path, "v", 3, "--devices", "2")
    quoted = json.dumps(WORDS_OF_MARKUP)
    placement.write_text(
        placement.read_text()
        .replace('"v-shape-2"', quoted)
        .replace('"device0"', quoted)
        .replace('"s0"', quoted)
    )
    output_of("search", placement, "--micro-batches", 3, "--output", plan)
    page = tmp_path / "page.html"
    output_of("show", plan, placement, "--html", page)
    assert "<b>" not in page.read_text()
    image, name, told = evaluate(page, "[svgText(), first.devices[0].name, describe(first.rows[0][0])]")
    texts = [text.text for text in ElementTree.fromstring(image).iter(f"{SVG}text")]
    assert (
        name == WORDS_OF_MARKUP
        and any(text.startswith(WORDS_OF_MARKUP[:8]) for text in texts)
        and WORDS_OF_MARKUP in told
    )


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """256 devices with 131,072 blocks."""
    folder = tmp_path_factory.mktemp("many")
    plan, placement = make(folder, "v", 256, "--devices", "256", method=("--method", "1f1b"))
    output_of("show", plan, placement, "--html", folder / "page.html")
    return folder / "page.html"


def test_many_devices_and_blocks_draw_only_what_is_seen(many):
    """As many shapes as the window has room for, not as there are blocks."""
    shapes = evaluate(many, """[[0, total], [total / 2, total / 2 + 9000]].map(([begin, end]) => {
      show(begin, end);
      const frame = frameOnPage(), pen = new SvgPen(1000, 800, "");
      draw(pen, frame);
      return pen.shapes.length;
    })""")  # fmt: skip
    assert 1000 < shapes[0] < 90_000 and 100 < shapes[1] < 5000


INK = """(() => {
  const inked = new Set(), ink = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  for (let i = 0; i < ink.length; i += 4) inked.add(ink[i] << 16 | ink[i + 1] << 8 | ink[i + 2]);
  const { scrollWidth } = document.documentElement;
  const named = (name) => parseInt(colours[name].slice(1), 16);
  return { shown: ["forward", "lane", "paper"].filter((name) => inked.has(named(name))), paper: colours.paper,
           over: Math.max(0, scrollWidth - innerWidth), cut: [...document.querySelectorAll(".scroll")].some((e) => e.scrollWidth > e.clientWidth), tall: canvas.clientHeight <= innerHeight, note: byId("note").textContent };
})()"""


@pytest.mark.slow  # test_every_view_is_drawn_and_is_an_image has Node draw them
@pytest.mark.parametrize("width", [400, 500, 1400])
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("which", ["wave", "many"])
def test_in_a_browser(request, which, width, dark):
    """With 4 and with 256 devices it draws in the colours of the day, no wider and no taller than the window,
    and no error is heard of."""
    found = look(request.getfixturevalue(which), INK, width=width, dark=dark)
    paper = {False: "#fdfdfc", True: "#14171b"}[dark]
    assert not found.pop("cut") or width < 500
    assert found == {
        "shown": ["forward", "lane", "paper"],
        "paper": paper,
        "over": 0,
        "tall": True,
        "note": "",
    }
