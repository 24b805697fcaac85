// Figures, legend, tables, controls and saved images; then the first drawing.

const byId = (id) => document.getElementById(id);
function element(parent, tag, text) {
  const child = parent.appendChild(document.createElement(tag));
  if (text !== undefined) child.textContent = text;
  return child;
}
const first = shownPlans[0];

// ---- figures
const computing = (plan) => plan.devices.filter((device) => !device.lane);
const counted = (number, one, more) => `${number} ${number === 1 ? one : more}`;
const titleOf = (plan) => `${plan.name}: ${counted(plan.micro_batches, "micro-batch", "micro-batches")} on ` +
  counted(computing(plan).length, "device", "devices");
function figure(name, value) {
  const item = element(byId("figures"), "li");
  element(item, "b", value);
  element(item, "span", name);
}
function writeFigures() {
  byId("title").textContent = titleOf(first);
  const [usual] = first.baselines;
  if (usual && first.makespan > 0 && first.objective === "makespan") {
    figure("as " + usual.name, `${(takenBy(usual) / takenBy(first)).toFixed(2)} times as fast`);
  }
  const units = computing(first), all = first.makespan * units.length;
  const busy = units.reduce((sum, device) => sum + device.busy, 0);
  figure("this plan, makespan", time(first.makespan) + (first.optimal ? " (optimal, says the plan)" : ""));
  if (first.shared > 0) figure("on shared cores", first.on_shared_cores);
  if (first.bound > 0) figure("lower bound, says the plan", time(first.bound));
  if (first.period > 0) figure(first.unroll > 1 ? `period of ${first.unroll} micro-batches` : "period", time(first.period));
  figure("bubble", percent(all - busy, all));
  figure("objective", first.objective);
  if (first.method) figure("method", first.method);
  for (const plan of shownPlans.slice(1)) figure(plan.title, time(takenBy(plan)) + comparedWith(plan).replace("the first", "as long"));
  for (const base of first.baselines) {
    const measured = base.measured > 0 ? ` (a step measured: ${time(base.measured)})` : "";
    figure(base.name + (base.fits ? "" : ", does not fit"), time(takenBy(base)) + measured);
  }
  const replicas = measured && data.measured.ranks > data.measured.devices.length ? ", of the first replica" : "";
  if (measured) figure("measured" + replicas, time(Math.max(...measured.map(lastEnd))));
  for (const line of first.words) element(byId("words"), "li", line);
}

// ---- legend
function legendRows() {
  const rows = [];
  if (view.colours === "kind") {
    for (const kind of kinds) {
      const chunks = Math.max(-1, ...shownPlans.flatMap((plan) => plan.blocks.filter((b) => b.kind === kind).map((b) => b.chunk)));
      for (let chunk = 0; chunk <= Math.min(chunks, shades.length - 1); ++chunk) {
        const more = chunk > 0 ? `chunk ${chunkName(chunk)}` : words(kind) + (chunks > 0 ? ", chunk a" : "");
        rows.push({ colour: colours[kind], alpha: shades[chunk], text: more });
      }
    }
    if (first.chunks > shades.length) rows.push({ text: `shades repeat from chunk ${chunkName(shades.length)} on` });
  } else {
    const stages = [...new Set(shownPlans.flatMap((plan) => plan.stages))];
    for (const stage of stages.slice(0, 24)) {
      const plan = shownPlans.find((p) => p.stages.includes(stage));
      rows.push({ colour: stageColour(plan, stage), alpha: 1, text: stage });
    }
    if (stages.length > 24) rows.push({ text: `and ${stages.length - 24} more stages` });
    rows.push({ text: "paler: backward" });
  }
  rows.push({ colour: colours.lane, alpha: 1, text: "bubble" });
  const devices = shownPlans.flatMap((plan) => plan.devices);
  if (view.memory) {
    rows.push({ colour: colours.memory, alpha: 0.75, text: "memory" });
    if (devices.some((device) => device.memory !== null)) rows.push({ line: colours.limit, text: "its limit" });
  }
  if (view.phases && devices.some((device) => device.repetend)) {
    rows.push({ line: colours.repetend, text: "begin and end of the repetend" });
  }
  if (view.critical) rows.push({ line: colours.bind, text: "what binds" });
  if (measured) {
    rows.push({ colour: colours.bind, alpha: 0.6, text: "measured: receives" });
    rows.push({ colour: colours.repetend, alpha: 0.6, text: "sends" });
  }
  return rows;
}
function writeLegend() {
  byId("legend").replaceChildren();
  for (const row of legendRows()) {
    const item = element(byId("legend"), "span");
    if (row.colour || row.line) {
      const swatch = element(item, "i");
      if (row.line) { swatch.className = "bar"; swatch.style.borderColor = row.line; }
      else { swatch.style.background = row.colour; swatch.style.opacity = row.alpha; }
    }
    item.append(row.text);
  }
}

// ---- tables
function writeTable(plan) {
  if (shownPlans.length > 1) element(byId("tables"), "h2", plan.title);
  const scroll = element(byId("tables"), "div");
  scroll.className = "scroll";
  const table = element(scroll, "table"), head = element(table, "tr");
  for (const name of ["device", "at work", "bubble", "peak memory", "of which static", "limit"]) element(head, "th", name);
  for (const device of plan.devices) {
    const row = element(table, "tr");
    const cells = [device.name, time(device.busy), percent(plan.makespan - device.busy, plan.makespan),
                   memory(device.peak), memory(device.static), memory(device.memory)];
    const made = cells.map((cell) => element(row, "td", cell));
    if (device.memory !== null && device.peak > device.memory) made[3].className = "over";
  }
}

// ---- drawing on the page
const pen = new CanvasPen(canvas.getContext("2d"));
function drawOnPage() {
  chart.style.height = axisHeight + lanesHeight + "px";
  const ratio = window.devicePixelRatio || 1, frame = frameOnPage();
  canvas.style.height = frame.height + "px";
  canvas.width = Math.round(frame.width * ratio);
  canvas.height = Math.round(frame.height * ratio);
  pen.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  byId("note").textContent = draw(pen, frame);
}
let pending = false;
function redraw() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => { pending = false; drawOnPage(); });
}
function restyle() {
  readColours();
  writeLegend();
  redraw();
}

// ---- saved images: the time that is seen, all rows, title and legend
function picture(makePen, width) {
  const above = 30, rows = legendRows(), inside = axisHeight + lanesHeight, columns = [];
  let x = 8, y = 0;
  for (const row of rows) {
    const wide = 40 + widthOf(row.text, 11);
    if (x > 8 && x + wide > width) { x = 8; y += 18; }
    columns.push([x, y]);
    x += wide;
  }
  const height = above + inside + y + 30, made = makePen(width, height);
  made.box(0, 0, width, height, colours.paper);
  const shift = new Proxy(made, { get: (target, name) => shifted(target, name, above) });
  draw(shift, frameOf(width, 0, inside));
  made.text(8, 15, cut(`${titleOf(first)}, makespan ${time(first.makespan)}`, 14, width - 16), colours.ink, { size: 14, bold: true });
  rows.forEach((row, i) => {
    const [left, down] = [columns[i][0], above + inside + 14 + columns[i][1]];
    if (row.colour) made.box(left, down - 6, 12, 12, row.colour, row.alpha);
    if (row.line) made.line([[left, down], [left + 12, down]], row.line, { width: 2, dash: [4, 2] });
    made.text(left + (row.colour || row.line ? 18 : 0), down, row.text, colours.soft, { size: 11 });
  });
  return made;
}
/// The pen's method with all y moved down.
function shifted(target, name, by) {
  const lower = ([x, y]) => [x, y + by];
  const moved = {
    line: (points, ...rest) => target.line(points.map(lower), ...rest),
    area: (points, ...rest) => target.area(points.map(lower), ...rest),
    curve: (x0, y0, x1, y1, ...rest) => target.curve(x0, y0 + by, x1, y1 + by, ...rest),
  };
  return moved[name] || ((x, y, ...rest) => target[name](x, y + by, ...rest));
}
function svgText() {
  const namespace = byId("paper").namespaceURI;
  return picture((width, height) => new SvgPen(width, height, namespace), Math.max(600, Math.round(canvas.clientWidth))).finish();
}
function save(blob, ending) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = (first.name.replace(/[^\w.-]+/g, "-").replace(/^[-.]+|-+$/g, "") || "plan") + ending;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
function savePng() {
  const sheet = document.createElement("canvas");
  picture((width, height) => {
    const ratio = Math.min(2, 16000 / Math.max(width, height));  // what browsers can draw on
    sheet.width = Math.round(width * ratio);
    sheet.height = Math.round(height * ratio);
    const made = new CanvasPen(sheet.getContext("2d"));
    made.context.scale(ratio, ratio);
    return made;
  }, Math.max(600, Math.round(canvas.clientWidth)));
  sheet.toBlob((blob) => blob && save(blob, ".png"));
}

// ---- controls
function onChange(id, key, kind, then) {
  const control = byId(id);
  control[kind] = view[key];
  control.addEventListener("input", () => {
    view[key] = control.type === "range" ? Number(control.value) : control[kind];
    then();
  });
}
const layAndStyle = () => { layOut(); restyle(); };
onChange("height", "rowHeight", "value", layAndStyle);
onChange("memory", "memory", "checked", layAndStyle);
onChange("phases", "phases", "checked", restyle);
onChange("critical", "critical", "checked", restyle);
onChange("transfers", "transfers", "value", redraw);
onChange("colours", "colours", "value", restyle);
byId("in").addEventListener("click", () => zoom(0.6));
byId("out").addEventListener("click", () => zoom(1 / 0.6));
byId("reset").addEventListener("click", () => show(0, total));
byId("svg").addEventListener("click", () => save(new Blob([svgText()], { type: "image/svg+xml" }), ".svg"));
byId("png").addEventListener("click", savePng);
window.addEventListener("resize", redraw);
window.addEventListener("scroll", redraw, { passive: true });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);

readColours();
layOut();
writeFigures();
writeLegend();
shownPlans.forEach(writeTable);
drawOnPage();
document.documentElement.dataset.drawn = "yes";  // for who waits for it
