// Drawing: axis, rows, memory, phases, transfers, what binds. Only what the frame shows is looked at.

let hovered = null, held = null;  // a step that is pointed at, and one that was clicked
const focus = () => hovered || held;
/// How strongly a step is drawn while another one is looked at.
function strengthOf(step) {
  const looked = focus();
  if (looked) return looked.microBatch === step.microBatch ? 1 : 0.25;
  return view.critical && !step.measured && !step.link ? 0.3 : 1;
}

// ---- axis
function drawAxis(pen, frame) {
  pen.box(0, 0, frame.width, axisHeight, colours.paper);
  const tick = niceTick((view.to - view.from) / Math.max(1, Math.min((frame.right - frame.left) / 70, 14)));
  let written = 0;  // up to which x there is text
  for (let t = Math.ceil(view.from / tick) * tick; t <= view.to; t += tick) {
    const x = xOf(frame, t), text = tickText(t, tick);
    pen.box(x, axisHeight - 5, 1, frame.height - axisHeight + 5, colours.line);
    const fits = x + 3 + widthOf(text, 11) < frame.width;
    if (!fits && x - 8 - widthOf(text, 11) < written) continue;
    pen.text(fits ? x + 3 : x - 3, axisHeight / 2 - 1, text, colours.soft, { size: 11, align: fits ? "left" : "right" });
    written = x + 3 + widthOf(text, 11);
  }
}
/// In the unit of the whole time, with as many digits as tell neighbours apart.
function tickText(t, tick) {
  const [name, factor] = timeUnits.filter(([, f]) => f <= Math.max(view.to, tick)).at(-1) || timeUnits[0];
  return number(t / factor, Math.max(0, Math.ceil(Math.log10(factor / tick)))) + " " + name;
}

// ---- steps
const cellWidth = 3;
function drawSteps(pen, frame, lane) {
  const row = lane.plan.rows[lane.device], y = yOf(frame, lane);
  const first = firstIndex(row.length, (i) => row[i].end > view.from);
  const last = firstIndex(row.length, (i) => row[i].start >= view.to);
  if (last <= first) return;
  if (lane.plan.usualTime / (view.to - view.from) * (frame.right - frame.left) < 1.6) {
    const edge = (t) => clampX(frame, xOf(frame, t));
    return drawCells(pen, frame, lane, edge(row[first].start), edge(row[last - 1].end));
  }
  for (let i = first; i < last; ++i) drawStep(pen, frame, row[i], y, lane.height);
  let labelled = -Infinity;
  for (let i = first; i < last; ++i) labelled = drawLabel(pen, frame, row[i], y, lane.height, labelled);
}
function boxOf(frame, step) {
  const x0 = clampX(frame, xOf(frame, step.start)), x1 = clampX(frame, xOf(frame, step.end));
  return [x0, Math.max(x1 - x0 - (x1 - x0 > 3 ? 0.75 : 0), 0.5)];
}
function drawStep(pen, frame, step, y, height) {
  const [x, width] = boxOf(frame, step), [colour, shade] = lookOf(step);
  pen.box(x, y + 1, width, height - 2, colour, shade * strengthOf(step));
}

/// Where blocks are narrower than pixels: cells that each colour fills by its share of the time.
function drawCells(pen, frame, lane, begin, end) {
  const { plan, device, height } = lane, row = plan.rows[device], y = yOf(frame, lane) + 1;
  const sums = workSums(plan, device, view.colours, colourKey);
  for (let x = begin; x < end; x += cellWidth) {
    const t0 = timeAt(frame, x), t1 = timeAt(frame, Math.min(x + cellWidth, end));
    let below = height - 2;
    workWithin(row, sums, t0, t1, colourKey).forEach((work, c) => {
      const share = (height - 2) * work / (t1 - t0);
      if (share < 0.05) return;
      below -= share;
      pen.box(x, y + Math.max(below, 0), Math.min(cellWidth, end - x), share, colourOfKey(plan, sums.colours[c]),
              focus() ? 0.35 : 1);
    });
  }
  if (!focus()) return;
  const looked = row.filter((step) => step.microBatch === focus().microBatch && step.end > view.from && step.start < view.to);
  for (const step of looked) drawMark(pen, frame, step, y, height - 2);
}
function drawMark(pen, frame, step, y, height) {
  const x = xOf(frame, step.start);
  pen.box(x, y, Math.max(1.5, xOf(frame, step.end) - x), height, lookOf(step)[0]);
}

const chunkName = (chunk) => String.fromCharCode(97 + chunk % 26);
const chunkLetter = (step) => step.plan.chunks > 1 ? chunkName(step.block.chunk) : "";
const shortLabel = (step) => letters[step.block.kind] + step.microBatch + chunkLetter(step);
const labelForms = [
  (step) => `${step.block.name} ${step.microBatch} · ${time(step.end - step.start)}`,
  (step) => `${step.block.name} ${step.microBatch}`,
  shortLabel,
  (step) => String(step.microBatch),
];
const labelSize = (height) => Math.min(12, Math.floor(height - 3));
/// In one figure all blocks of a plan have the same kind of label: the longest for which most have room.
function labelForm(frame, plan, height) {
  const scale = (frame.right - frame.left) / (view.to - view.from), size = labelSize(height);
  const [known, form] = plan.labels || [];
  if (known === scale + "/" + size) return form;
  const last = plan.micro_batches - 1, steps = plan.blocks.map((_, index) => stepOf(plan, index, last));
  const hasRoom = (form) => (step) => widthOf(form(step), size) < step.block.time * scale - 3;
  const found = labelForms.find((form) => steps.filter(hasRoom(form)).length >= 0.5 * steps.length) || labelForms.at(-1);
  plan.labels = [scale + "/" + size, found];
  return found;
}

/// A block's label, where there is room; where there is none, now and then one beyond it, behind a mark at the block's
/// begin. Returns where the last label ends.
function drawLabel(pen, frame, step, y, height, labelled) {
  const most = labelSize(height);
  if (most < 7) return labelled;
  const [x, width] = boxOf(frame, step), strength = strengthOf(step), alpha = Math.max(0.45, strength);
  const text = labelForm(frame, step.plan, height)(step);
  const size = [most, Math.min(most, 9)].find((size) => widthOf(text, size) < width - 3);
  if (size !== undefined && x > labelled) {
    pen.text(x + Math.min(4, (width - widthOf(text, size)) / 2), y + height / 2, text, colours.label, { size, alpha });
    return x + width;
  }
  const room = widthOf(text, 9) + 4;
  const clear = x >= labelled + 30 && x + room <= frame.right && strength === 1;
  if (size !== undefined || width > 24 || room > 30 || height < 14 || !clear) return labelled;
  pen.box(x, y + 1, 1.5, height - 2, colours.label, 0.8);
  pen.box(x + 1.5, y + height - 13, room, 12, colours.paper, 0.8);
  pen.text(x + 3, y + height - 7, text, colours.ink, { size: 9 });
  return x + room;
}

// ---- what was measured: as the planned blocks are labelled, with the measured over the planned time where it fits
function drawMeasured(pen, frame, lane) {
  const { computes, transfers } = measured[lane.device], y = yOf(frame, lane);
  const thin = Math.max(2, Math.round(0.22 * lane.height)), size = Math.min(11, Math.floor(lane.height - thin - 2));
  const each = (steps, draw) => steps.forEach((step) => {
    if (step.end <= view.from || step.start >= view.to) return;
    const [x, width] = boxOf(frame, step);
    draw(step, x, width);
  });
  each(computes, (step, x, width) => {
    const [colour, shade] = step.planned ? lookOf(step.planned) : [colours[step.kind], 1];
    pen.box(x, y, width, lane.height - thin - 1, colour, shade * strengthOf(step));
    const label = step.planned
      ? labelForm(frame, step.plan, view.rowHeight)({ ...step.planned, start: step.start, end: step.end })
      : step.action + step.microBatch;
    const text = [`${label} ×${shareOf([step])}`, label].find((text) => widthOf(text, size) < width - 2);
    if (size >= 7 && text !== undefined) {
      pen.text(x + 2, y + (lane.height - thin) / 2, text, colours.label, { size, alpha: Math.max(0.45, strengthOf(step)) });
    }
  });
  each(transfers, (step, x, width) => {
    pen.box(x, y + lane.height - thin, width, thin - 1, step.action.startsWith("RECV") ? colours.bind : colours.repetend,
            0.6 * strengthOf(step));
  });
}

// ---- memory
/// All rows of the page have one scale: up to the highest limit or peak.
function drawMemory(pen, frame, lane) {
  const { plan, device } = lane, { times, bytes } = memoryCurve(plan, device), { memory: limit } = plan.devices[device];
  const top = yOf(frame, lane) + 1, height = lane.height - 2, base = top + height;
  const level = (value) => base - height * 0.94 * value / mostMemory;
  const last = Math.min(plan.makespan, view.to);
  const points = [[frame.left, base]];
  let i = Math.max(0, firstIndex(times.length, (k) => times[k] > view.from) - 1);
  for (let x = frame.left; i < times.length && times[i] < last;) {
    const column = Math.floor(clampX(frame, xOf(frame, times[i])));
    let highest = bytes[i];  // of all changes that fall on this column of pixels
    for (++i; i < times.length && times[i] < last && xOf(frame, times[i]) < column + 1; ++i) {
      highest = Math.max(highest, bytes[i]);
    }
    x = Math.max(x, column);
    points.push([x, points.at(-1)[1]], [x, level(highest)]);
    const after = bytes[i - 1];
    if (after !== highest) points.push([x + 1, level(highest)], [x + 1, level(after)]);
  }
  const end = clampX(frame, xOf(frame, last));
  points.push([end, points.at(-1)[1]], [end, base]);
  pen.area(points, colours.memory, 0.75);
  const edge = limit === null ? [] : [[frame.left, level(limit)], [frame.right, level(limit)]];
  if (edge.length) pen.line(edge, colours.limit, { dash: [4, 3], alpha: 0.9 });
}

// ---- names and phases
function drawName(pen, frame, lane) {
  const size = Math.max(6, Math.min(12, lane.height - 1)), y = yOf(frame, lane) + lane.height / 2;
  const room = frame.left - 8, small = Math.min(10, lane.height - 1);
  if (lane.what === "steps") pen.text(4, y, cut(lane.plan.devices[lane.device].name, size, room), colours.ink, { size });
  const note = (text) => {
    if (small >= 7) pen.text(frame.left - 4, y, cut(text, small, room), colours.soft, { size: small, align: "right" });
  };
  if (lane.what === "measured") note("measured ×" + shareOf(measured[lane.device].computes));
  if (lane.what === "memory") note(memory(lane.plan.devices[lane.device].peak));
}

function drawTitle(pen, frame, lane) {
  const { plan } = lane, y = yOf(frame, lane) + titleHeight / 2;
  if (shownPlans.length > 1) {
    const text = chartTitle(plan);
    pen.text(4, y, cut(text, 12, frame.right - 8), colours.ink, { bold: true });
  }
}
const chartTitle = (plan) => `${plan.title}: ${time(plan.makespan)}` +
  (plan.shared > 0 ? `, on shared cores ${plan.on_shared_cores}` : "") + comparedWith(plan);
function comparedWith(plan) {
  const makespan = takenBy(shownPlans[0]), isOver = (device) => device.memory !== null && device.peak > device.memory;
  const times = plan !== shownPlans[0] && makespan > 0 ? `, ${(takenBy(plan) / makespan).toFixed(2)} times the first` : "";
  return times + (plan.devices.some(isOver) ? ", over the memory" : "");
}

/// Two lines down the rows, where the repetend begins and ends on each device, and the names of the phases.
function drawPhases(pen, frame, plan) {
  const side = (index) => plan.order.flatMap((d, row) => {
    const device = plan.devices[d], lane = laneAt.get(plan)[d], next = laneAt.get(plan)[plan.order[row + 1]];
    if (!device.repetend) return [];
    const x = xOf(frame, device.repetend[index]), y = yOf(frame, lane);
    return [[x, y], [x, next ? yOf(frame, next) : y + lane.height]];
  });
  const bounds = [side(0), side(1)];
  for (const points of bounds) if (points.length) {
    pen.line(points, colours.paper, { width: 3.5, alpha: 0.8 });
    pen.line(points, colours.repetend, { width: 1.75, dash: [5, 3] });
  }
  const lane = lanes.find((l) => l.what === "title" && l.plan === plan), middle = (points) => points.length
    ? points.reduce((sum, [x]) => sum + x, 0) / points.length : NaN;
  const [begin, end] = bounds.map(middle), y = yOf(frame, lane) + titleHeight / 2;
  if (!(end > begin)) return;
  const period = `repetend, every ${time(plan.period)}`, indent = shownPlans.length > 1 ? titleWidth(plan) : 0;
  for (const [text, from, to] of [["warm-up", frame.left, begin], [period, begin, end], ["repetend", begin, end],
                                  ["cool-down", end, xOf(frame, plan.makespan)]]) {
    const x0 = Math.max(from, frame.left, indent), x1 = Math.min(to, frame.right), room = x1 - x0 - 8;
    if (widthOf(text, 11) > room || (text === "repetend" && widthOf(period, 11) <= room)) continue;
    pen.text((x0 + x1) / 2, y, text, colours.repetend, { size: 11, align: "center" });
  }
}
const titleWidth = (plan) => 14 + widthOf(chartTitle(plan), 12.5);

// ---- transfers and what binds
const middleOf = (frame, lane) => yOf(frame, lane) + lane.height / 2;
function drawTransfer(pen, frame, { from, to, devices, arrival }, alpha) {
  const [y0, y1] = devices.map((device) => middleOf(frame, laneAt.get(from.plan)[device]));
  const x0 = xOf(frame, from.end), x1 = xOf(frame, arrival), begin = xOf(frame, to.start);
  pen.curve(x0, y0, x1, y1, colours.ink, { width: 1.2, alpha });
  pen.box(x1 - 1.5, y1 - 1.5, 3, 3, colours.ink, alpha);
  if (begin - x1 > 2) pen.line([[x1, y1], [begin, y1]], colours.ink, { dash: [1, 2], alpha });
}
/// Transfers that are asked for and lie in the frame; null where they are too many to be told apart.
function transfersToDraw(frame) {
  const looked = focus(), found = [];
  if (view.transfers === "none" || (view.transfers === "pointed" && !looked)) return found;
  const seen = ({ from, to, devices }) => to.start >= view.from && from.end <= view.to &&
    devices.some((device) => isSeen(frame, laneAt.get(to.plan)[device]));
  if (looked) {
    for (const plan of shownPlans) {
      if (looked.plan !== plan || looked.microBatch >= plan.micro_batches) continue;
      plan.blocks.forEach((_, index) => found.push(...transfersInto(stepOf(plan, index, looked.microBatch)).filter(seen)));
    }
    return found;
  }
  for (const lane of visibleLanes(frame)) {
    if (lane.what !== "steps") continue;
    const row = lane.plan.rows[lane.device];
    for (let i = firstIndex(row.length, (k) => row[k].end > view.from); i < row.length && row[i].start < view.to; ++i) {
      found.push(...transfersInto(row[i]).filter((way) => way.devices[1] === lane.device && seen(way)));
      if (found.length > 4000) return null;
    }
  }
  return found;
}
const isSeen = (frame, lane) => yOf(frame, lane) + lane.height > axisHeight && yOf(frame, lane) < frame.height;
function drawTransfers(pen, frame) {
  const ways = transfersToDraw(frame);
  if (ways === null) return "Too many transfers to draw: zoom in, or point at a block.";
  for (const way of ways) drawTransfer(pen, frame, way, focus() ? 0.9 : 0.45);
  return "";
}

function drawChain(pen, frame, plan) {
  const laneOf = (step) => laneAt.get(plan)[step.link.device];
  plan.chain.forEach((step, i) => {
    if (step.end < view.from || step.start > view.to) return;
    const lane = laneOf(step), y = yOf(frame, lane), [x, width] = boxOf(frame, step);
    if (width > 2.5) pen.frame(x + 0.75, y + 1.5, width - 1.5, lane.height - 3, colours.bind, 1.5);
    else pen.box(x, y + lane.height - 3, width, 3, colours.bind);
    const before = plan.chain[i - 1];
    if (!before || step.block.devices.includes(before.link.device)) return;
    const from = before.block.devices.includes(step.link.device) ? lane : laneOf(before);
    const [x0, x1] = [xOf(frame, before.end), xOf(frame, step.start)];
    pen.curve(x0, middleOf(frame, from), x1, y + lane.height / 2, colours.bind, { width: 2 });
  });
}

// ---- the whole
/// Returns what there is to say about the picture.
function draw(pen, frame) {
  pen.box(0, 0, frame.width, frame.height, colours.paper);
  const seen = visibleLanes(frame), plot = [frame.left, axisHeight, frame.right - frame.left, frame.height - axisHeight];
  let note = "";
  for (const lane of seen) {
    if (lane.what !== "steps") continue;
    const begin = clampX(frame, xOf(frame, 0)), end = clampX(frame, xOf(frame, lane.plan.makespan));
    pen.box(begin, yOf(frame, lane) + 1, end - begin, lane.height - 2, colours.lane);
  }
  drawAxis(pen, frame);
  pen.clip(...plot, () => {
    for (const lane of seen) {
      if (lane.what === "steps") drawSteps(pen, frame, lane);
      if (lane.what === "measured") drawMeasured(pen, frame, lane);
      if (lane.what === "memory") drawMemory(pen, frame, lane);
    }
    for (const plan of shownPlans) {
      if (view.phases && plan.devices.some((device) => device.repetend)) drawPhases(pen, frame, plan);
      if (view.critical) drawChain(pen, frame, plan);
    }
    note = drawTransfers(pen, frame);
  });
  pen.clip(0, axisHeight, frame.width, frame.height - axisHeight, () => {
    for (const lane of seen) lane.what === "title" ? drawTitle(pen, frame, lane) : drawName(pen, frame, lane);
  });
  return note;
}
