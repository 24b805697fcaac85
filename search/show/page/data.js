// The plans as they are drawn: steps by device, what a device holds over time, and how figures are written.

const data = JSON.parse(document.getElementById("data").textContent);
const kinds = ["forward", "backward", "backward_input", "backward_weight", "offload", "load", "other"];
const letters = { forward: "F", backward: "B", backward_input: "I", backward_weight: "W", offload: "O", load: "L",
                  other: "" };
const kindOfLetter = { F: "forward", B: "backward", I: "backward_input", W: "backward_weight", O: "offload",
                       L: "load" };

// ---- figures as people read them
const timeUnits = [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9]];
const memoryUnits = [["B", 1], ["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30]];
const number = (value, digits = 3) => value.toLocaleString("en", { maximumFractionDigits: digits });
function scaled(value, units, digits) {
  let [name, factor] = units[0];
  for (const [n, f] of units) if (Math.abs(value) >= f) [name, factor] = [n, f];
  return number(value / factor, digits) + " " + name;
}
const time = (ns) => scaled(ns, timeUnits);
const memory = (bytes) => bytes === null ? "unlimited" : scaled(bytes, memoryUnits, 2);
const percent = (part, whole) => whole > 0 ? (100 * part / whole).toFixed(1) + " %" : "–";
/// Where devices share cores, with the sharing.
const takenBy = ({ makespan, shared }) => shared > 0 ? shared : makespan;
const words = (name) => name.replaceAll("_", " ");

/// The smallest 1, 2 or 5 times a power of ten that is at least `length`; at least 1.
function niceTick(length) {
  const power = Math.pow(10, Math.floor(Math.log10(Math.max(length, 1))));
  return power * ([1, 2, 5].find((factor) => power * factor >= length) || 10);
}

// ---- searching in what is sorted
/// The first index for which `holds(index)`, which stays true from there on; `count` where there is none.
function firstIndex(count, holds) {
  let low = 0, high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle; else low = middle + 1;
  }
  return low;
}

// ---- steps
/// Adds to a plan of the page: `table` (steps by micro-batch and block), `rows` (steps of each device by start),
/// `usualTime` (the average of its blocks), `chain` (steps that bind, in order).
function complete(plan) {
  const count = plan.blocks.length;
  plan.table = new Array(count * plan.micro_batches);
  plan.rows = plan.devices.map(() => []);
  plan.order = plan.devices.map((_, d) => d).sort((a, b) => plan.devices[a].row - plan.devices[b].row);
  for (const [block, microBatch, start] of plan.steps) {
    const b = plan.blocks[block];
    const step = { plan, index: block, block: b, microBatch, start, end: start + b.time, link: null };
    plan.table[microBatch * count + block] = step;
    for (const device of b.devices) plan.rows[device].push(step);
  }
  for (const row of plan.rows) row.sort((a, b) => a.start - b.start || a.end - b.end);
  plan.usualTime = plan.blocks.reduce((sum, b) => sum + b.time, 0) / plan.blocks.length;
  plan.chain = plan.critical.map(([block, microBatch, why, device, transfer, idle, missing]) => {
    const step = stepOf(plan, block, microBatch);
    step.link = { why, device, transfer, idle, missing };
    return step;
  });
  plan.stages = [...new Set(plan.blocks.map((b) => b.stage))];
  plan.chunks = 1 + Math.max(0, ...plan.blocks.map((b) => b.chunk));
  plan.curves = plan.devices.map(() => null);
  plan.sums = new Map();
}
const stepOf = (plan, block, microBatch) => plan.table[microBatch * plan.blocks.length + block];

/// What a device holds: bytes[i] from times[i] on. What ends at an instant gives back before what starts takes.
function memoryCurve(plan, device) {
  if (plan.curves[device]) return plan.curves[device];
  const changes = [];
  for (const step of plan.rows[device]) {
    const { memory: kept, workspace } = step.block;
    const taken = Math.max(kept, 0) + workspace;
    if (taken) changes.push([step.start, taken]);
    const given = Math.min(kept, 0) - workspace;
    if (given) changes.push([step.end, given]);
  }
  changes.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const times = new Float64Array(changes.length + 1), bytes = new Float64Array(changes.length + 1);
  bytes[0] = plan.devices[device].static;
  changes.forEach(([at, by], i) => { times[i + 1] = at; bytes[i + 1] = bytes[i] + by; });
  return plan.curves[device] = { times, bytes, peak: bytes.reduce((a, b) => Math.max(a, b), 0) };
}

/// Work of a device by colour: sums[c][i] is that of its steps before i. `colourOf` gives a step's.
function workSums(plan, device, name, colourOf) {
  const key = name + device;
  if (plan.sums.has(key)) return plan.sums.get(key);
  const row = plan.rows[device], colours = [...new Set(row.map(colourOf))];
  const sums = colours.map(() => new Float64Array(row.length + 1));
  row.forEach((step, i) => {
    const own = colours.indexOf(colourOf(step));
    for (let c = 0; c < sums.length; ++c) sums[c][i + 1] = sums[c][i] + (c === own ? step.end - step.start : 0);
  });
  plan.sums.set(key, { colours, sums });
  return plan.sums.get(key);
}

/// Work of each colour within [begin, end), in the order of workSums().colours.
function workWithin(row, { sums, colours }, begin, end, colourOf) {
  const first = firstIndex(row.length, (i) => row[i].end > begin), last = firstIndex(row.length, (i) => row[i].start >= end);
  const work = sums.map((sum) => last > first ? sum[last] - sum[first] : 0);
  if (last <= first) return work;
  work[colours.indexOf(colourOf(row[first]))] -= Math.max(0, begin - row[first].start);
  work[colours.indexOf(colourOf(row[last - 1]))] -= Math.max(0, row[last - 1].end - end);
  return work;
}

// ---- transfers
/// Between devices, of what a step takes: { from: step, to: step, devices: [sender, receiver], arrival, bytes }.
function transfersInto(step) {
  const found = [];
  for (const [block, bytes, routes] of step.block.after) {
    const sender = stepOf(step.plan, block, step.microBatch);
    for (const [from, to, takes] of routes) {
      found.push({ from: sender, to: step, devices: [from, to], arrival: sender.end + takes, bytes });
    }
  }
  return found;
}

// ---- what was measured
/// The step of the plan that an instruction is of; undefined where the plan has none.
function plannedOf(plan, device, kind, microBatch, plannedStart) {
  const row = plan.rows[device], first = firstIndex(row.length, (i) => row[i].start >= plannedStart);
  for (let i = first; i < row.length && row[i].start === plannedStart; ++i) {
    if (row[i].microBatch === microBatch && row[i].block.kind === kind) return row[i];
  }
  return undefined;
}

/// Computes and transfers of each device of the first plan, by start; null where nothing was measured.
function measuredRows(plan) {
  if (data.measured === null) return null;
  return plan.devices.map((_, device) => {
    const computes = [], transfers = [];
    for (const [action, stage, microBatch, plannedStart, start, end] of data.measured.devices[device] || []) {
      const kind = kindOfLetter[action];
      const planned = kind && plannedOf(plan, device, kind, microBatch, plannedStart);
      const made = { plan, measured: true, action, stage, kind, microBatch, start, end, planned };
      if (planned) planned.ran = made;
      (kind ? computes : transfers).push(made);
    }
    return { computes, transfers };
  });
}

data.plans.forEach(complete);
const measured = measuredRows(data.plans[0]);
const lastEnd = (row) => row.computes.concat(row.transfers).reduce((last, step) => Math.max(last, step.end), 0);
const total = Math.max(1, ...data.plans.map((plan) => plan.makespan), ...(measured || []).map(lastEnd));
