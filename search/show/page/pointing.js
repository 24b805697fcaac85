// Mouse, fingers and keys: moving, zooming, and the details of what is pointed at.

const [canvas, chart, tip] = ["canvas", "chart", "tip"].map((id) => document.getElementById(id));

/// The page scrolls the rows: the canvas stays in the window, and shows that part of the chart which is there.
function frameOnPage() {
  const whole = axisHeight + lanesHeight, height = Math.min(whole, Math.max(window.innerHeight, 120));
  const top = Math.min(Math.max(0, -chart.getBoundingClientRect().top), whole - height);
  return frameOf(canvas.clientWidth, top, height);
}
function show(newFrom, newTo) {
  const length = Math.min(Math.max(newTo - newFrom, Math.min(total, 20)), total);
  view.from = Math.min(Math.max(newFrom, 0), total - length);
  view.to = view.from + length;
  redraw();
}
const zoom = (factor, at = (view.from + view.to) / 2) => show(at - (at - view.from) * factor, at + (view.to - at) * factor);

// ---- what is there
function laneUnder(frame, y) {
  if (y < axisHeight) return undefined;
  return lanes.find((lane) => yOf(frame, lane) <= y && y < yOf(frame, lane) + lane.height);
}
function stepUnder(event) {
  const box = canvas.getBoundingClientRect(), frame = frameOnPage(), x = event.clientX - box.left;
  const lane = laneUnder(frame, event.clientY - box.top);
  if (!lane || lane.what === "title" || x < frame.left) return null;
  const t = timeAt(frame, x), slack = 3 * (view.to - view.from) / (frame.right - frame.left);
  const row = lane.what === "measured" ? measured[lane.device].computes : lane.plan.rows[lane.device];
  const at = firstIndex(row.length, (i) => row[i].end > t);
  const near = [row[at], row[at - 1]].find((step) => step && step.start - slack <= t && t < step.end + slack);
  return near || null;
}

// ---- details
const sentences = {
  begin: () => "binds: the chain of what binds begins here",
  device: (link, plan) => `binds: waits for ${plan.devices[link.device].name}, which works until then`,
  memory: (link, plan) =>
    `binds: waits for memory of ${plan.devices[link.device].name}, which lacks ${memory(link.missing)} before`,
  dependency: () => "binds: waits for its input, which is computed until then",
  transfer: (link) => `binds: waits for its input, on its way for ${time(link.transfer)}`,
  none: (link) => `binds, though nothing holds it up: it could start ${time(link.idle)} earlier`,
};
function describe(step) {
  return step.measured ? describeMeasured(step) : describePlanned(step);
}
function describePlanned(step) {
  const { plan, block: b } = step, lines = [`${b.name}, micro-batch ${step.microBatch}`];
  lines.push(`${words(b.kind)} of stage ${b.stage}` + (plan.chunks > 1 ? `, chunk ${chunkName(b.chunk)}` : ""));
  lines.push(`${time(step.start)} – ${time(step.end)}  (${time(b.time)})`);
  lines.push("on " + listed(b.devices.map((d) => plan.devices[d].name)));
  if (b.memory !== 0) lines.push((b.memory > 0 ? "takes " : "gives back ") + memory(Math.abs(b.memory)));
  if (b.workspace > 0) lines.push("workspace " + memory(b.workspace));
  const ways = transfersInto(step);
  for (const way of ways.slice(0, 4)) {
    lines.push(`${way.from.block.name} arrives from ${plan.devices[way.devices[0]].name} at ${time(way.arrival)} ` +
               `(${memory(way.bytes)}, ${time(way.arrival - way.from.end)})`);
  }
  if (ways.length > 4) lines.push(`and ${ways.length - 4} more transfers`);
  if (step.link) lines.push(sentences[step.link.why](step.link, plan));
  if (step.ran) lines.push(`measured ${time(step.ran.start)} – ${time(step.ran.end)}  (${beside(step.ran)})`);
  return lines.join("\n");
}
function describeMeasured(step) {
  const planned = step.planned, name = planned ? planned.block.name : `${step.action} of stage ${step.stage}`;
  const lines = [`measured: ${name}, micro-batch ${step.microBatch}`];
  lines.push(`${time(step.start)} – ${time(step.end)}  (${planned ? beside(step) : time(step.end - step.start)})`);
  if (planned) lines.push(`planned ${time(planned.start)} – ${time(planned.end)}  (${time(planned.block.time)})`);
  return lines.join("\n");
}
/// Of the planned time.
function shareOf(steps) {
  const known = steps.filter((ran) => ran.planned), sum = (of) => known.reduce((all, ran) => all + of(ran), 0);
  const meant = sum((ran) => ran.planned.block.time);
  return meant > 0 ? (sum((ran) => ran.end - ran.start) / meant).toFixed(2) : "–";
}
function beside(ran) {
  const late = ran.start - ran.planned.start;
  return `${time(ran.end - ran.start)}, ${shareOf([ran])} of the plan, starts ${time(Math.abs(late))} ${late < 0 ? "early" : "late"}`;
}
const listed = (names) => names.length > 8 ? `${names.slice(0, 8).join(", ")} and ${names.length - 8} more` : names.join(", ");

function tell(step, event) {
  tip.hidden = step === null;
  if (step === null) return;
  tip.textContent = describe(step);
  const x = event.clientX + 14, y = event.clientY + 14, above = event.clientY - tip.offsetHeight - 14;
  tip.style.left = Math.max(4, Math.min(x, window.innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(4, y + tip.offsetHeight + 8 > window.innerHeight ? above : y) + "px";
}
function point(event) {
  const step = stepUnder(event);
  if (step !== hovered) { hovered = step; redraw(); }
  tell(step, event);
}
function hold(step) {
  held = held === step ? null : step;
  redraw();
}

// ---- pointers: one moves the time, two zoom
const fingers = new Map();
let start = null, moved = false;
function begin() {
  const at = [...fingers.values()].map((event) => event.clientX);
  const middle = at.reduce((a, b) => a + b, 0) / at.length, frame = frameOnPage();
  start = { middle, spread: Math.max(20, Math.abs(at[0] - at.at(-1))), from: view.from, to: view.to, frame, count: at.length };
}
function move() {
  const at = [...fingers.values()].map((event) => event.clientX), { frame } = start;
  const middle = at.reduce((a, b) => a + b, 0) / at.length;
  if (Math.abs(middle - start.middle) > 4 || at.length > 1) moved = true;
  if (!moved) return;
  const scale = start.count > 1 ? start.spread / Math.max(20, Math.abs(at[0] - at.at(-1))) : 1;
  const edge = canvas.getBoundingClientRect().left + frame.left, wide = frame.right - frame.left;
  const anchor = start.from + (start.middle - edge) / wide * (start.to - start.from);
  const length = (start.to - start.from) * scale, newFrom = anchor - (middle - edge) / wide * length;
  show(newFrom, newFrom + length);
}
canvas.addEventListener("pointerdown", (event) => {
  fingers.set(event.pointerId, event);
  if (fingers.size === 1) moved = false;
  canvas.setPointerCapture(event.pointerId);
  begin();
});
canvas.addEventListener("pointermove", (event) => {
  if (!fingers.has(event.pointerId)) return point(event);
  fingers.set(event.pointerId, event);
  move();
});
function lift(event) {
  if (!fingers.delete(event.pointerId)) return;
  if (fingers.size) return begin();
  if (moved || event.type === "pointercancel") return;
  const step = stepUnder(event);
  if (event.pointerType !== "mouse") tell(held === step ? null : step, event);
  hold(step);
}
canvas.addEventListener("pointerup", lift);
canvas.addEventListener("pointercancel", lift);
canvas.addEventListener("pointerleave", (event) => {
  if (event.pointerType !== "mouse") return;
  hovered = null;
  tip.hidden = true;
  redraw();
});
canvas.addEventListener("wheel", (event) => {
  const frame = frameOnPage(), length = view.to - view.from;
  const sideways = event.shiftKey && !event.deltaX ? event.deltaY : event.deltaX;
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    const x = event.clientX - canvas.getBoundingClientRect().left;
    zoom(Math.exp(event.deltaY * 0.004), timeAt(frame, Math.max(frame.left, x)));
  } else if (Math.abs(sideways) > Math.abs(event.deltaY) || event.shiftKey) {
    event.preventDefault();
    const shift = sideways / (frame.right - frame.left) * length;
    show(view.from + shift, view.to + shift);
  }
}, { passive: false });
canvas.addEventListener("keydown", (event) => {
  const step = (view.to - view.from) / 8;
  const keys = {
    ArrowLeft: () => show(view.from - step, view.to - step), ArrowRight: () => show(view.from + step, view.to + step),
    "+": () => zoom(0.8), "=": () => zoom(0.8), "-": () => zoom(1.25), 0: () => show(0, total),
    Escape: () => { held = hovered = null; tip.hidden = true; redraw(); },
  };
  if (event.ctrlKey || event.metaKey || !keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
