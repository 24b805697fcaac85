// What the chart is drawn with: the canvas on the page, and SVG to be saved. Both know the same few shapes.
//
//   pen.box(x, y, width, height, color, alpha)         pen.frame(x, y, width, height, color, thickness)
//   pen.line([[x, y], ...], color, { width, dash, alpha })
//   pen.curve(x0, y0, x1, y1, color, { width, alpha })   leaves and arrives level
//   pen.area([[x, y], ...], color, alpha)
//   pen.text(x, y, text, color, { size, align, alpha, bold })     y: the middle
//   pen.clip(x, y, width, height, draw)

const fontFamily = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

class CanvasPen {
  constructor(context) { this.context = context; }
  box(x, y, width, height, color, alpha = 1) {
    this.context.globalAlpha = alpha;
    this.context.fillStyle = color;
    this.context.fillRect(x, y, width, height);
  }
  frame(x, y, width, height, color, thickness) {
    this.context.globalAlpha = 1;
    this.context.strokeStyle = color;
    this.context.lineWidth = thickness;
    this.context.setLineDash([]);
    this.context.strokeRect(x, y, width, height);
  }
  path(points) {
    this.context.beginPath();
    points.forEach(([x, y], i) => i ? this.context.lineTo(x, y) : this.context.moveTo(x, y));
  }
  stroke(color, { width = 1, dash = [], alpha = 1 } = {}) {
    this.context.globalAlpha = alpha;
    this.context.strokeStyle = color;
    this.context.lineWidth = width;
    this.context.setLineDash(dash);
    this.context.stroke();
  }
  line(points, color, options) { this.path(points); this.stroke(color, options); }
  curve(x0, y0, x1, y1, color, options) {
    const bend = bendOf(x0, x1);
    this.context.beginPath();
    this.context.moveTo(x0, y0);
    this.context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
    this.stroke(color, options);
  }
  area(points, color, alpha = 1) {
    this.path(points);
    this.context.globalAlpha = alpha;
    this.context.fillStyle = color;
    this.context.fill();
  }
  text(x, y, text, color, { size = 12, align = "left", alpha = 1, bold = false } = {}) {
    this.context.font = (bold ? "600 " : "") + size + "px " + fontFamily;
    this.context.textAlign = align;
    this.context.textBaseline = "middle";
    this.context.globalAlpha = alpha;
    this.context.fillStyle = color;
    this.context.fillText(text, x, y);
  }
  clip(x, y, width, height, draw) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, width, height);
    this.context.clip();
    draw();
    this.context.restore();
  }
}

const bendOf = (x0, x1) => Math.max(4, Math.min(40, Math.abs(x1 - x0) / 2));
const xmlSafe = (text) => String(text).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd")
  .replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

class SvgPen {
  constructor(width, height, namespace) {
    this.size = [width, height, namespace];
    this.shapes = [];
  }
  /// Coordinates to a hundredth.
  round(value) { return String(Math.round(value * 100) / 100); }
  add(tag, attributes, content = null) {
    const text = Object.entries(attributes).filter(([, value]) => value !== null)
      .map(([name, value]) => ` ${name}="${typeof value === "number" ? this.round(value) : xmlSafe(value)}"`).join("");
    this.shapes.push(content === null ? `<${tag}${text}/>` : `<${tag}${text}>${xmlSafe(content)}</${tag}>`);
  }
  box(x, y, width, height, color, alpha = 1) {
    this.add("rect", { x, y, width, height, fill: color, "fill-opacity": alpha < 1 ? alpha : null });
  }
  frame(x, y, width, height, color, thickness) {
    this.add("rect", { x, y, width, height, fill: "none", stroke: color, "stroke-width": thickness });
  }
  points(list) { return list.map(([x, y]) => this.round(x) + "," + this.round(y)).join(" "); }
  stroke(color, { width = 1, dash = [], alpha = 1 } = {}) {
    return { fill: "none", stroke: color, "stroke-width": width, "stroke-dasharray": dash.length ? dash.join(" ") : null,
             "stroke-opacity": alpha < 1 ? alpha : null };
  }
  line(points, color, options) { this.add("polyline", { points: this.points(points), ...this.stroke(color, options) }); }
  curve(x0, y0, x1, y1, color, options) {
    const bend = bendOf(x0, x1), at = (x, y) => this.round(x) + " " + this.round(y);
    const d = `M${at(x0, y0)} C${at(x0 + bend, y0)} ${at(x1 - bend, y1)} ${at(x1, y1)}`;
    this.add("path", { d, ...this.stroke(color, options) });
  }
  area(points, color, alpha = 1) {
    this.add("polygon", { points: this.points(points), fill: color, "fill-opacity": alpha < 1 ? alpha : null });
  }
  text(x, y, text, color, { size = 12, align = "left", alpha = 1, bold = false } = {}) {
    const anchor = { left: null, center: "middle", right: "end" }[align];
    this.add("text", { x, y: y + 0.35 * size, "font-size": size, "text-anchor": anchor, "font-weight": bold ? "600" : null,
                       fill: color, "fill-opacity": alpha < 1 ? alpha : null }, text);
  }
  clip(x, y, width, height, draw) {
    const box = [x, y, width, height].map((value) => this.round(value));
    this.shapes.push(`<svg x="${box[0]}" y="${box[1]}" width="${box[2]}" height="${box[3]}" viewBox="${box.join(" ")}">`);
    draw();
    this.shapes.push("</svg>");
  }
  finish() {
    const [width, height, namespace] = this.size;
    return `<svg xmlns="${namespace}" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
      `font-family="${xmlSafe(fontFamily)}">\n${this.shapes.join("\n")}\n</svg>\n`;
  }
}
