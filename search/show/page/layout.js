// Where everything stands: which time and which rows are seen, and the colours of the day.

const view = {
  from: 0, to: total,
  rowHeight: 28, memory: true, phases: true, critical: false, transfers: "none", colours: "kind",
};
const axisHeight = 24, titleHeight = 24;
const shownPlans = data.plans;
const devicesOfAll = shownPlans.flatMap((plan) => plan.devices);
const mostMemory = Math.max(1, ...devicesOfAll.map((device) => Math.max(device.memory || 0, device.peak)));
view.rowHeight = Math.max(9, Math.min(30, Math.floor(620 / devicesOfAll.length)));
view.memory = devicesOfAll.length <= 64;

/// The rows from the top, y from below the axis: { what: "title" | "steps" | "measured" | "memory", plan, device, y, height }.
let lanes = [], lanesHeight = 0;
const laneAt = new Map();  // plan -> its lanes of steps by device
function layOut() {
  lanes = [];
  laneAt.clear();
  let y = 0;
  const add = (what, plan, device, height) => {
    const lane = { what, plan, device, y, height };
    lanes.push(lane);
    y += height;
    return lane;
  };
  for (const plan of shownPlans) {
    const repeats = plan.devices.some((device) => device.repetend);
    if (shownPlans.length > 1 || measured || repeats) add("title", plan, -1, titleHeight);
    const at = [];
    for (const device of plan.order) {
      const lane = add("steps", plan, device, view.rowHeight);
      if (measured && plan === shownPlans[0]) add("measured", plan, device, Math.max(6, Math.round(0.7 * view.rowHeight)));
      if (view.memory && !plan.devices[device].lane) add("memory", plan, device, Math.max(8, Math.round(0.75 * view.rowHeight)));
      y += view.rowHeight >= 14 ? 3 : 0;
      at[device] = lane;
    }
    laneAt.set(plan, at);
    y += 6;
  }
  lanesHeight = y;
}

/// How a picture lies on its paper: `left`: where `view.from` is; `top`: the lanes' y at the paper's `axisHeight`.
/// Beside the rows long names may be cut, but not amounts of memory.
function frameOf(width, top, height) {
  const names = Math.max(...devicesOfAll.map((device) => device.name.length));
  const wanted = Math.min(14 + 7 * Math.min(names, 24), Math.max(64, 0.24 * width));
  const peaks = view.memory ? Math.max(...devicesOfAll.map((device) => widthOf(memory(device.peak), 10))) : 0;
  const left = Math.round(Math.max(wanted, measured ? 12 + widthOf("measured ×0.00", 10) : 0, peaks + 12));
  return { width, height, top, left, right: width - 2 };
}
const xOf = (frame, t) => frame.left + (t - view.from) / (view.to - view.from) * (frame.right - frame.left);
const timeAt = (frame, x) => view.from + (x - frame.left) / (frame.right - frame.left) * (view.to - view.from);
const yOf = (frame, lane) => axisHeight + lane.y - frame.top;
const clampX = (frame, x) => Math.min(Math.max(x, frame.left), frame.right);

/// Lanes of which the frame shows something.
function visibleLanes(frame) {
  const first = firstIndex(lanes.length, (i) => lanes[i].y + lanes[i].height > frame.top);
  const last = firstIndex(lanes.length, (i) => lanes[i].y >= frame.top + frame.height - axisHeight);
  return lanes.slice(first, last);
}

// ---- colours
let colours = {};
const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
function readColours() {
  const names = [...kinds, "paper", "ink", "soft", "line", "lane", "label", "memory", "limit", "bind", "repetend"];
  colours = Object.fromEntries(names.map((name) => [name, styleOf(name)]));
  colours.stage = [styleOf("saturation"), styleOf("lightness")];
}
const shades = [1, 0.6, 0.3];  // of the chunks of a device, in turn
const stageColour = (plan, stage) =>
  `hsl(${Math.round(137.5 * plan.stages.indexOf(stage)) % 360} ${colours.stage[0]} ${colours.stage[1]})`;
/// What workSums() tells apart.
const colourKey = (step) => view.colours === "stage" ? step.block.stage : step.block.kind;
const colourOfKey = (plan, key) => view.colours === "stage" ? stageColour(plan, key) : colours[key];
function lookOf(step) {
  if (view.colours === "kind") return [colours[step.block.kind], shades[step.block.chunk % shades.length]];
  return [stageColour(step.plan, step.block.stage), step.block.kind === "forward" ? 1 : 0.7];
}

// ---- the width of a text: of its letters, each measured once
const letterWidths = new Map(), ruler = document.createElement("canvas").getContext("2d");
function letterWidth(letter) {
  if (!letterWidths.has(letter)) {
    ruler.font = "100px " + fontFamily;
    letterWidths.set(letter, ruler.measureText(letter).width / 100);
  }
  return letterWidths.get(letter);
}
function widthOf(text, size) {
  let sum = 0;
  for (const letter of text) sum += letterWidth(letter);
  return sum * size;
}
function cut(text, size, room) {
  if (widthOf(text, size) <= room) return text;
  let end = text.length;
  while (end > 0 && widthOf(text.slice(0, end), size) > room - size) --end;
  return end > 0 ? text.slice(0, end) + "…" : "";
}
