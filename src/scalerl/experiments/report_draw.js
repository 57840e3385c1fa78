// Elements, scales, number formats and marks: what every figure of the page is drawn with.

function make(tag, attributes = {}, ...children) {
  return dress(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return dress(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function dress(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(node.style, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined));
  return node;
}

const byId = (id) => document.getElementById(id);
const known = (v) => typeof v === "number" && Number.isFinite(v);

// ── numbers ────────────────────────────────────────────────────────────────────────────────────
const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const raised = (n) => [...String(n)].map((c) => SUPERSCRIPT[c]).join("");

function number(v, digits = 3) {
  if (!known(v)) return "–";
  if (v === 0) return "0";
  const size = Math.abs(v);
  if (size >= 1e15 || size < 1e-4) {
    const power = Math.floor(Math.log10(size) + 1e-9);
    const front = trimmed(v / 10 ** power, digits);
    return `${front === "1" ? "" : `${front}×`}10${raised(power)}`;
  }
  for (const [limit, suffix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= limit) return trimmed(v / (suffix === "k" ? 1e3 : limit), digits) + suffix;
  }
  return trimmed(v, digits).replace("-", "−");
}

function trimmed(v, digits) {
  const text = v.toPrecision(Math.max(digits, Math.ceil(Math.log10(Math.abs(v) + 1))));
  return text.includes("e") ? String(Number(text)) : text.replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

const rate = (v) => (known(v) ? v.toFixed(3) : "–");
const rateTick = (v) => rate(v).replace(/0$/, "");
const percent = (v) => (!known(v) ? "–" : v > 0 && v < 0.001 ? "< 0.1 %" : `${(100 * v).toFixed(v > 0 && v < 0.095 ? 1 : 0)} %`);
const signed = (v) => (known(v) ? `${v < 0 ? "−" : "+"}${Math.abs(v).toFixed(3)}` : "–");

// ── scales ─────────────────────────────────────────────────────────────────────────────────────
function scale(low, high, from, to, log = false) {
  const f = log ? Math.log : (v) => v;
  const a = f(low), b = f(high);
  const at = (v) => from + ((f(v) - a) / (b - a || 1)) * (to - from);
  return Object.assign(at, { low, high, log });
}

function ticks(s, room) {
  return s.log && s.high / s.low > 4 ? logTicks(s, room) : evenTicks(s.low, s.high, room);
}

function evenTicks(low, high, room) {
  const rough = (high - low) / Math.max(1, room);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((v) => v >= rough * 0.999);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) {
    out.push(Number((i * step).toPrecision(12)));
  }
  return out;
}

function logTicks(s, room) {
  const all = (fronts, every) => {
    const out = [];
    for (let p = Math.floor(Math.log10(s.low)); p <= Math.log10(s.high); p++) {
      if (p % every === 0) for (const k of fronts) out.push(Number(`${k}e${p}`));
    }
    return out.filter((v) => v >= s.low * 0.9999 && v <= s.high * 1.0001);
  };
  const choices = [[[1, 2, 5], 1], [[1, 3], 1], [[1], 1], [[1], 2], [[1], 4]];
  return choices.map((c) => all(...c)).find((t) => t.length <= room) ?? all([1], 8);
}

// ── marks and lines ────────────────────────────────────────────────────────────────────────────
const COLOURS = 7;
const MARKS = [
  (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
  (r) => `M${-0.9 * r},${-0.9 * r}H${0.9 * r}V${0.9 * r}H${-0.9 * r}Z`,
  (r) => `M0,${-1.2 * r}L${1.15 * r},${0.9 * r}H${-1.15 * r}Z`,
  (r) => `M0,${-1.3 * r}L${1.3 * r},0L0,${1.3 * r}L${-1.3 * r},0Z`,
  (r) => `M0,${1.2 * r}L${1.15 * r},${-0.9 * r}H${-1.15 * r}Z`,
];
// Runs of one variant, such as its seeds, share colour and mark; see groupRuns.
const look = (i) => page.runs[i].look;
const colour = (i) => `var(--s${look(i) % COLOURS})`;

function mark(i, x, y, { open = false, size = 4 } = {}) {
  return shape("path", {
    class: "mark",
    d: MARKS[look(i) % MARKS.length](size),
    transform: `translate(${x.toFixed(1)},${y.toFixed(1)})`,
    style: { stroke: colour(i), strokeWidth: 1.7, fill: open ? "var(--paper)" : colour(i) },
  });
}

function swatch(i, { open = false } = {}) {
  return shape("svg", { width: 14, height: 14, "aria-hidden": "true" }, mark(i, 7, 7, { open }));
}

function stroke(i, { dash = "", width = 2, opacity = 1 } = {}) {
  return { fill: "none", stroke: colour(i), strokeWidth: width, strokeDasharray: dash, opacity };
}

function sample(i, options) {
  const line = shape("line", { x1: 0, x2: 26, y1: 6, y2: 6, style: stroke(i, options) });
  return shape("svg", { width: 26, height: 12, "aria-hidden": "true" }, line);
}

// A path through [x, y] pixels; an unknown y breaks it.
function path(points) {
  let pen = "M";
  return points
    .map(([x, y]) => {
      if (!known(x) || !known(y)) return (pen = "M"), "";
      const text = `${pen}${x.toFixed(1)},${y.toFixed(1)}`;
      pen = "L";
      return text;
    })
    .join("");
}

// ── frame: axes with grid and titles ───────────────────────────────────────────────────────────
function axes(svg, x, y, box, { xTitle = "", yFormat = rateTick, xFormat = number, xRoom = null, yRoom = box.height / 45 } = {}) {
  for (const v of ticks(y, yRoom)) {
    const at = y(v);
    svg.append(
      shape("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }),
      shape("text", { x: box.left - 7, y: at + 4, "text-anchor": "end" }, yFormat(v)),
    );
  }
  for (const v of ticks(x, xRoom ?? (box.right - box.left) / 75)) {
    const at = x(v);
    svg.append(
      shape("line", { class: "axis", x1: at, x2: at, y1: box.bottom, y2: box.bottom + 4 }),
      shape("text", { x: at, y: box.bottom + 17, "text-anchor": "middle" }, xFormat(v)),
    );
  }
  svg.append(shape("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  if (xTitle) {
    const middle = (box.left + box.right) / 2;
    svg.append(shape("text", { class: "title", x: middle, y: box.bottom + 37, "text-anchor": "middle" }, xTitle));
  }
}

// ── pointing: mouse, touch and arrow keys move over the same stops ─────────────────────────────
// stops: [{x, y, run, lines: [text]}] in pixels; show(stop, layer) may draw into a layer of its own.
function pointable(holder, svg, stops, { near, show, label }) {
  const tip = make("div", { class: "tip", hidden: true, role: "status" });
  const layer = shape("g", { "pointer-events": "none" });
  svg.append(layer);
  holder.append(tip);
  let current = -1;
  const hide = () => ((current = -1), (tip.hidden = true), layer.replaceChildren());
  const go = (i) => {
    if (i < 0 || i >= stops.length) return;
    current = i;
    const stop = stops[i];
    layer.replaceChildren();
    show(stop, layer);
    const [first, ...rest] = stop.lines;
    tip.replaceChildren(make("b", {}, first), ...rest.map((t) => make("div", {}, t)));
    tip.hidden = false;
    const space = holder.clientWidth - tip.offsetWidth;
    const beside = stop.x + 14 <= space ? stop.x + 14 : stop.x - tip.offsetWidth - 14;
    tip.style.left = `${Math.max(0, Math.min(space, beside))}px`;
    tip.style.top = `${Math.max(0, stop.y - tip.offsetHeight - 8)}px`;
  };
  const keys = (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1, Home: -1e9, End: 1e9 }[event.key];
    if (event.key === "Escape") hide();
    if (event.key === "ArrowUp" || event.key === "ArrowDown") otherRun(event.key === "ArrowUp" ? 1 : -1);
    else if (move) go(current < 0 ? 0 : Math.max(0, Math.min(stops.length - 1, current + move)));
    else return;
    event.preventDefault();
  };
  const otherRun = (way) => {
    const from = stops[Math.max(0, current)];
    const others = stops.map((s, i) => [s, i]).filter(([s]) => s.run !== from?.run);
    if (!others.length) return;
    const wanted = others.map(([s]) => s.run).filter((r) => (r - from.run) * way > 0);
    const run = wanted.length ? (way > 0 ? Math.min(...wanted) : Math.max(...wanted)) : others[0][0].run;
    const nearest = others.filter(([s]) => s.run === run);
    nearest.sort((a, b) => Math.abs(a[0].x - from.x) - Math.abs(b[0].x - from.x));
    go(nearest[0][1]);
  };
  const point = (event) => {
    const box = svg.getBoundingClientRect();
    const i = near(event.clientX - box.left, event.clientY - box.top);
    if (i < 0) hide();
    else go(i);
  };
  dress(svg, {
    tabindex: 0, role: "group", "aria-label": label,
    onpointermove: point, onpointerdown: point, onpointerleave: hide, onkeydown: keys, onblur: hide,
  }, []);
}
