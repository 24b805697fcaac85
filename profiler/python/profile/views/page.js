"use strict";
// Zooming and moving along the time axis of a profile's page, and the figures of what is pointed at.
// The plots scroll by themselves; zooming makes what scrolls wider.

const plots = document.getElementById("plots"), wide = document.getElementById("wide"), axis = document.getElementById("axis");
const total = Number(plots.dataset.total), told = document.getElementById("told");  // total: nanoseconds
let zoom = 1;

/// The smallest 1, 2 or 5 times a power of ten that is at least `length`; at least 1.
function nice(length) {
  const power = Math.pow(10, Math.floor(Math.log10(Math.max(length, 1))));
  return power * ([1, 2, 5].find((factor) => power * factor >= length) || 10);
}
/// A mark every 90 pixels or more, over what is seen and a little beyond.
function drawAxis() {
  const across = plots.clientWidth * zoom, tick = nice(total * 90 / across), span = total * plots.clientWidth / across;
  const seen = total * plots.scrollLeft / across, digits = Math.max(0, Math.ceil(6 - Math.log10(tick)));
  axis.replaceChildren();
  for (let t = Math.max(0, Math.floor((seen - span) / tick) * tick); t <= Math.min(total, seen + 2 * span); t += tick) {
    const mark = axis.appendChild(document.createElement("span"));
    mark.style.left = 100 * t / total + "%";
    mark.textContent = (t / 1e6).toFixed(digits) + " ms";
  }
}
/// What is at `x` pixels from the left of the plots stays there.
function zoomTo(wanted, x = plots.clientWidth / 2) {
  const share = (plots.scrollLeft + x) / (plots.clientWidth * zoom);
  zoom = Math.min(Math.max(wanted, 1), Math.max(1, total / 1000));
  wide.style.setProperty("--zoom", zoom);
  plots.scrollLeft = share * plots.clientWidth * zoom - x;
  drawAxis();
}

function tell(event) {
  const at = event.target.closest("[title], rect");
  if (at) told.textContent = at.title || at.querySelector("title").textContent;
}
plots.addEventListener("pointerover", tell);
plots.addEventListener("click", tell);

const fingers = new Map();
let start = null;
function spread() {
  const at = [...fingers.values()].map((event) => event.clientX);
  return Math.max(20, Math.abs(at[0] - at.at(-1)));
}
plots.addEventListener("pointerdown", (event) => {
  fingers.set(event.pointerId, event);
  start = { x: event.clientX, scroll: plots.scrollLeft, zoom, spread: spread() };
});
window.addEventListener("pointermove", (event) => {
  if (!fingers.has(event.pointerId)) return;
  fingers.set(event.pointerId, event);
  if (fingers.size === 2) zoomTo(start.zoom * spread() / start.spread);
  else if (event.pointerType === "mouse") plots.scrollLeft = start.scroll - (event.clientX - start.x);
});
for (const name of ["pointerup", "pointercancel"]) window.addEventListener(name, (event) => fingers.delete(event.pointerId));
plots.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  zoomTo(zoom * Math.exp(-event.deltaY * 0.004), event.clientX - plots.getBoundingClientRect().left);
}, { passive: false });
const keys = { "+": () => zoomTo(zoom * 1.5), "=": () => zoomTo(zoom * 1.5), "-": () => zoomTo(zoom / 1.5), 0: () => zoomTo(1) };
plots.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || !keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
document.getElementById("in").addEventListener("click", keys["+"]);
document.getElementById("out").addEventListener("click", keys["-"]);
document.getElementById("all").addEventListener("click", keys[0]);
plots.addEventListener("scroll", drawAxis, { passive: true });
window.addEventListener("resize", drawAxis);
drawAxis();
document.documentElement.dataset.drawn = "yes";  // for who waits for it
