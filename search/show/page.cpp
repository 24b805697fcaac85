// SPDX-License-Identifier: Apache-2.0
#include "search/show/page.h"

namespace ostinato {

const std::string_view kShowPage = R"page(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@TITLE@</title>
<style>
  :root {
    color-scheme: light dark;
    --paper: #fdfdfc; --ink: #1d2126; --soft: #667080; --line: #d8dce2; --lane: #f0f1f3;
    --forward: #6aa2e6; --backward: #6cba7c; --backward_input: #52bdbd; --backward_weight: #e2b04a; --other: #b7a4d6;
    --label: #10151b;
  }
  @media (prefers-color-scheme: dark) {
    :root {
      --paper: #14171b; --ink: #e4e7eb; --soft: #98a2b0; --line: #343b44; --lane: #1e232a;
      --forward: #4d87cf; --backward: #4f9c61; --backward_input: #3b9d9d; --backward_weight: #c0902f; --other: #8d78b4;
      --label: #f6f8fa;
    }
  }
  body { margin: 0; padding: 24px; background: var(--paper); color: var(--ink);
         font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
  h1 { font-size: 20px; margin: 0 0 4px; }
  .figures { display: flex; flex-wrap: wrap; gap: 8px 28px; margin: 8px 0 16px; padding: 0; list-style: none; }
  .figures b { display: block; font-size: 16px; font-variant-numeric: tabular-nums; }
  .figures span, .hint, .axis { color: var(--soft); }
  .legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 8px 0; }
  .legend i { display: inline-block; width: 14px; height: 14px; border-radius: 3px; margin-right: 6px; vertical-align: -2px; }
  #chart { display: block; width: 100%; border: 1px solid var(--line); border-radius: 6px; cursor: grab; touch-action: none; }
  #chart:active { cursor: grabbing; }
  #tip { position: fixed; pointer-events: none; background: var(--ink); color: var(--paper); padding: 6px 10px;
         border-radius: 6px; white-space: pre; font-size: 12.5px; line-height: 1.4; z-index: 1; }
  table { border-collapse: collapse; margin-top: 20px; font-variant-numeric: tabular-nums; }
  th, td { padding: 3px 14px 3px 0; text-align: right; border-bottom: 1px solid var(--line); font-weight: normal; }
  th:first-child, td:first-child { text-align: left; }
  th { color: var(--soft); }
  .scroll { overflow-x: auto; }
  button { font: inherit; color: inherit; background: var(--lane); border: 1px solid var(--line); border-radius: 5px;
           padding: 1px 9px; cursor: pointer; }
</style>
<h1 id="title"></h1>
<ul class="figures" id="figures"></ul>
<div class="legend" id="legend"></div>
<canvas id="chart" tabindex="0" role="img" aria-label="Timeline of the plan: one row a device"></canvas>
<p class="hint">Scroll or + and &minus; to zoom, drag or arrow keys to move, point at a block for its details and its
micro-batch. <button id="reset">Show all</button></p>
<div class="scroll"><table id="devices"></table></div>
<div id="tip" hidden></div>
<script type="application/json" id="plan">@PLAN@</script>
<script>
"use strict";
const plan = JSON.parse(document.getElementById("plan").textContent);
const kinds = ["forward", "backward", "backward_input", "backward_weight", "other"];
const letters = { forward: "F", backward: "B", backward_input: "I", backward_weight: "W", other: "" };
const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 3 });
function scaled(value, units) {
  let [name, factor] = units[0];
  for (const [n, f] of units) if (value >= f) [name, factor] = [n, f];
  return number(value / factor) + " " + name;
}
const time = (ns) => scaled(ns, [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9]]);
const memory = (b) => b === null ? "unlimited" : scaled(b, [["B", 1], ["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30]]);
const percent = (part, whole) => whole > 0 ? (100 * part / whole).toFixed(1) + " %" : "–";
function element(parent, tag, text) {
  const child = parent.appendChild(document.createElement(tag));
  if (text !== undefined) child.textContent = text;
  return child;
}

// ---- figures, legend, table
document.getElementById("title").textContent =
  plan.name + ": " + plan.micro_batches + " micro-batches on " + plan.devices.length + " devices";
function figure(name, value) {
  const item = element(document.getElementById("figures"), "li");
  element(item, "b", value);
  element(item, "span", name);
}
const busy = plan.devices.reduce((sum, device) => sum + device.busy, 0);
figure("makespan", time(plan.makespan) + (plan.optimal ? " (optimal, says the plan)" : ""));
if (plan.bound > 0) figure("lower bound, says the plan", time(plan.bound));
if (plan.period > 0) figure(plan.unroll > 1 ? "period of " + plan.unroll + " micro-batches" : "period", time(plan.period));
figure("bubble", percent(plan.makespan * plan.devices.length - busy, plan.makespan * plan.devices.length));
figure("objective", plan.objective);
if (plan.method) figure("method", plan.method);
for (const kind of kinds.filter((k) => plan.blocks.some((b) => b.kind === k))) {
  const item = element(document.getElementById("legend"), "span");
  element(item, "i").style.background = "var(--" + kind + ")";
  item.append(kind.replace("_", " "));
}
const table = document.getElementById("devices");
const head = element(table, "tr");
for (const name of ["device", "at work", "bubble", "peak memory", "of which static", "capacity"]) element(head, "th", name);
for (const device of plan.devices) {
  const row = element(table, "tr");
  const cells = [device.name, time(device.busy), percent(plan.makespan - device.busy, plan.makespan),
                 memory(device.peak), memory(device.static), memory(device.memory)];
  for (const cell of cells) element(row, "td", cell);
}

// ---- timeline
const canvas = document.getElementById("chart"), tip = document.getElementById("tip"), pen = canvas.getContext("2d");
const rowHeight = Math.max(9, Math.min(34, Math.floor(640 / plan.devices.length))), axisHeight = 26;
const total = Math.max(plan.makespan, 1);
let from = 0, to = total, hovered = null, drag = null, left = 80;
const rows = plan.devices.map(() => []);  // steps of a device by start
for (const [block, microBatch, start] of plan.steps) {
  const step = { block: plan.blocks[block], microBatch, start, end: start + plan.blocks[block].time };
  for (const device of step.block.devices) rows[device].push(step);
}
const several = plan.blocks.some((block) => block.chunk > 0);

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const width = () => canvas.clientWidth;
const x = (t) => left + (t - from) / (to - from) * (width() - left);
const timeAt = (px) => from + (px - left) / (width() - left) * (to - from);

function firstVisible(row) {  // the first step that ends after `from`
  let low = 0, high = row.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row[middle].end > from) high = middle; else low = middle + 1;
  }
  return low;
}
function drawStep(step, y, colors) {
  const x0 = Math.max(x(step.start), left), x1 = Math.min(x(step.end), width());
  const wide = x1 - x0, gap = wide > 3 ? 0.75 : 0;
  pen.globalAlpha = (hovered && hovered.microBatch !== step.microBatch ? 0.25 : 1) * (step.block.chunk % 2 ? 0.72 : 1);
  pen.fillStyle = colors[step.block.kind];
  pen.fillRect(x0, y + 1, Math.max(wide - gap, 0.5), rowHeight - 2);
  if (rowHeight < 13 || wide < 8) return;
  const fits = (text) => wide - pen.measureText(text).width > 2;  // without the letter the colour still names the kind
  const label = [letters[step.block.kind] + step.microBatch, String(step.microBatch)].find(fits);
  if (label !== undefined) {
    pen.globalAlpha = hovered && hovered.microBatch !== step.microBatch ? 0.35 : 1;
    pen.fillStyle = colors.label;
    pen.fillText(label, x0 + Math.min(4, (wide - pen.measureText(label).width) / 2), y + rowHeight / 2);
  }
}
function drawAxis(colors, bottom) {
  pen.globalAlpha = 1;
  let tick = Math.pow(10, Math.floor(Math.log10((to - from) / 5)));
  for (const factor of [5, 2]) if (tick * factor <= (to - from) / 5) { tick *= factor; break; }
  tick = Math.max(tick, 1);
  for (let t = Math.ceil(from / tick) * tick; t <= to; t += tick) {
    pen.fillStyle = colors.line;
    pen.fillRect(x(t), 0, 1, bottom + 5);
    pen.fillStyle = colors.soft;
    const text = time(t);
    pen.fillText(text, Math.min(x(t) + 4, width() - pen.measureText(text).width - 4), bottom + 14);
  }
}
function draw() {
  const ratio = window.devicePixelRatio || 1, bottom = rowHeight * rows.length;
  canvas.style.height = bottom + axisHeight + "px";
  canvas.width = Math.round(width() * ratio);
  canvas.height = Math.round((bottom + axisHeight) * ratio);
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.font = Math.min(12, rowHeight - 1) + "px system-ui, sans-serif";
  pen.textBaseline = "middle";
  left = 16 + Math.min(160, Math.max(...plan.devices.map((device) => pen.measureText(device.name).width)));
  const colors = Object.fromEntries([...kinds, "ink", "soft", "line", "lane", "label"].map((k) => [k, style("--" + k)]));
  for (let d = 0; d < rows.length; ++d) {
    pen.globalAlpha = 1;
    pen.fillStyle = colors.lane;
    pen.fillRect(left, d * rowHeight + 1, width() - left, rowHeight - 2);
    pen.fillStyle = colors.ink;
    pen.fillText(plan.devices[d].name, 8, (d + 0.5) * rowHeight, left - 16);
  }
  drawAxis(colors, bottom);
  for (let d = 0; d < rows.length; ++d) {
    for (let i = firstVisible(rows[d]); i < rows[d].length && rows[d][i].start < to; ++i) {
      drawStep(rows[d][i], d * rowHeight, colors);
    }
  }
  pen.globalAlpha = 1;
}
let pending = false;
function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; draw(); });
}

// ---- moving and pointing
function view(newFrom, newTo) {
  const length = Math.min(Math.max(newTo - newFrom, Math.min(total, 20)), total);
  from = Math.min(Math.max(newFrom, 0), total - length);
  to = from + length;
  redraw();
}
const zoom = (factor, at) => view(at - (at - from) * factor, at + (to - at) * factor);
function stepAt(event) {
  const box = canvas.getBoundingClientRect();
  const row = rows[Math.floor((event.clientY - box.top) / rowHeight)], px = event.clientX - box.left;
  if (!row || px < left) return null;
  const t = timeAt(px);
  return row.find((step) => step.start <= t && t < step.end) || null;
}
function describe(step) {
  const b = step.block, lines = [b.name + ", micro-batch " + step.microBatch];
  lines.push(b.kind.replace("_", " ") + " of stage " + b.stage + (several ? ", chunk " + b.chunk : ""));
  lines.push(time(step.start) + " – " + time(step.end) + "  (" + time(b.time) + ")");
  lines.push("on " + b.devices.map((d) => plan.devices[d].name).join(", "));
  if (b.memory !== 0) lines.push((b.memory > 0 ? "takes " : "gives back ") + memory(Math.abs(b.memory)));
  if (b.workspace > 0) lines.push("workspace " + memory(b.workspace));
  return lines.join("\n");
}
function point(event) {
  const step = stepAt(event);
  if (step !== hovered) { hovered = step; redraw(); }
  tip.hidden = step === null;
  if (step === null) return;
  tip.textContent = describe(step);
  tip.style.left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8) + "px";
}
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(event.deltaY * 0.0015), timeAt(event.clientX - canvas.getBoundingClientRect().left));
}, { passive: false });
canvas.addEventListener("pointerdown", (event) => {
  drag = { x: event.clientX, from, to };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", (event) => {
  if (!drag) return point(event);
  const shift = (event.clientX - drag.x) / (width() - left) * (drag.to - drag.from);
  view(drag.from - shift, drag.to - shift);
});
for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { drag = null; });
canvas.addEventListener("pointerleave", () => { hovered = null; tip.hidden = true; redraw(); });
canvas.addEventListener("keydown", (event) => {
  const step = (to - from) / 8, middle = (from + to) / 2;
  const keys = { ArrowLeft: () => view(from - step, to - step), ArrowRight: () => view(from + step, to + step),
                 "+": () => zoom(0.8, middle), "=": () => zoom(0.8, middle), "-": () => zoom(1.25, middle) };
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});
document.getElementById("reset").addEventListener("click", () => view(0, total));
window.addEventListener("resize", redraw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
draw();
</script>
</html>
)page";

}  // namespace ostinato
