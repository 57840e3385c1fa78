// The main figure: pass rate, or its F-transform, against a choice of compute, with fit and forecast.

const MOST_BARS = 8; // intervals of A beside the figure
const unitLabel = (key) => page.units.find((u) => u.key === key).label;
const fitOf = (run, part = state.fit) => (part === "off" ? null : (run.fits[state.x]?.[part] ?? null));

// Evaluations of a run in the chosen unit: [{i, c, r, se, later, inside, out}].
function pointsOf(run) {
  const fit = fitOf(run);
  const each = new Map((fit?.later ?? []).map((c, k) => [c, fit.check?.each[k] ?? null]));
  const out = new Set((fit?.left_out ?? []).map(([c]) => c));
  return run.curve.pass_rate
    .map((r, i) => {
      const c = run.curve[state.x][i];
      return { i, c, r, se: run.curve.pass_rate_se[i], later: each.has(c), inside: each.get(c) ?? null, out: out.has(c) };
    })
    .filter((p) => known(p.c) && known(p.r));
}

// Value of one of the grid's columns at a compute, linear in log compute.
function along(grid, column, c) {
  const j = grid.c.findIndex((v) => v >= c);
  if (j < 0 || (j === 0 && grid.c[0] > c)) return null;
  if (grid.c[j] === c) return grid[column][j];
  const w = Math.log(c / grid.c[j - 1]) / Math.log(grid.c[j] / grid.c[j - 1]);
  const [a, b] = [grid[column][j - 1], grid[column][j]];
  return known(a) && known(b) ? a + w * (b - a) : null;
}

// log10 F(R) = B·log10 C_mid + log10(f / (1 − f)), f = (R − R0) / (A − R0); null where undefined.
function logF(fit, r) {
  const [A, B, C, R0] = ["A", "B", "C_mid", "R0"].map((k) => fit?.[k]?.[0]);
  if (![A, B, C, R0].every(known) || !(r > R0 && r < A)) return null;
  const f = (r - R0) / (A - R0);
  return { y: B * Math.log10(C) + Math.log10(f / (1 - f)), per: 1 / (Math.LN10 * (A - R0) * f * (1 - f)) };
}

function shownRuns() {
  return page.runs.map((run, i) => ({ run, i })).filter(({ i }) => state.runs.has(i));
}

function drawChart() {
  const holder = byId("chart");
  const width = Math.max(280, holder.clientWidth);
  const runs = shownRuns().map((r) => ({ ...r, points: pointsOf(r.run), fit: fitOf(r.run) }));
  const empty = !runs.some((r) => r.points.length);
  const height = empty ? 120 : Math.round(Math.min(470, Math.max(320, width * 0.5)));
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  holder.replaceChildren(svg);
  const box = { left: 48, right: width - 14, top: 14, bottom: height - 46 };
  box.height = box.bottom - box.top;
  const stops = state.view === "F" ? drawTransform(svg, box, runs) : drawRates(svg, box, runs);
  if (!stops.length) {
    const nothing = empty ? "No evaluation to draw yet" : "No fit to transform the evaluations by";
    const words = state.runs.size ? nothing : "No run selected";
    svg.append(shape("text", { class: "title", x: width / 2, y: height / 2, "text-anchor": "middle" }, words));
  }
  const near = (x, y) => {
    const gaps = stops.map((s) => Math.hypot(s.x - x, (s.y - y) * 0.6));
    const i = gaps.indexOf(Math.min(...gaps));
    return i >= 0 && gaps[i] < 60 ? i : -1;
  };
  const show = (s, layer) => layer.append(shape("circle", { class: "halo", cx: s.x, cy: s.y, r: 8 }));
  pointable(holder, svg, stops, { near, show, label: chartLabel(runs) });
  drawKey(runs);
}

function chartLabel(runs) {
  const ends = runs.filter((r) => r.points.length).map((r) => {
    const last = r.points.at(-1);
    return `${r.run.name} from ${rate(r.points[0].r)} to ${rate(last.r)}`;
  });
  return `Pass rate against ${unitLabel(state.x)}: ${ends.join("; ")}. Arrow keys move along the evaluations.`;
}

// ── pass rate ──────────────────────────────────────────────────────────────────────────────────
function drawRates(svg, box, runs) {
  const all = runs.flatMap((r) => r.points);
  const positive = all.map((p) => p.c).filter((c) => c > 0);
  if (!all.length) return [];
  const bounded = runs.filter((r) => known(r.fit?.A?.[1]));
  const bars = bounded.length <= MOST_BARS ? bounded : [];
  box.right -= bars.length ? 16 + 9 * bars.length : 0;
  const log = state.log && positive.length > 0;
  const zero = log && all.some((p) => p.c === 0) ? 34 : 0; // room for step 0, which log C has no place for
  const top = Math.max(...positive, 1e-12) * (state.fit === "whole" ? 1.8 : log ? 1.12 : 1.03);
  const low = log ? Math.min(...positive) / 1.2 : 0;
  const x = scale(low, top, box.left + zero, box.right, log);
  const y = scale(...rateRange(runs, top), box.bottom, box.top);
  axes(svg, x, y, box, { xTitle: unitLabel(state.x), xFormat: (v) => number(v) });
  if (zero) drawZero(svg, box, zero);
  const at = (p) => (log && p.c <= 0 ? box.left + 12 : x(p.c));
  const clip = clipTo(svg, box, x(low));
  for (const r of runs) if (r.fit?.grid) drawFit(svg, clip, r, x, y, box, runs.length === 1);
  const many = runs.length > 6;
  for (const r of runs) drawPoints(svg, r, at, y, many ? 3 : 4.2);
  bars.forEach((r, k) => drawCeiling(svg, r, box.right + 16 + 9 * k, y));
  if (bars.length) svg.append(shape("text", { class: "title", x: box.right + 12, y: box.top - 2 }, "A"));
  return runs.flatMap((r) => r.points.map((p) => stopOf(r, p, at(p), y(p.r))));
}

function rateRange(runs, top) {
  const values = [];
  for (const { points, fit } of runs) {
    for (const p of points) values.push(p.r - (p.se ?? 0), p.r + (p.se ?? 0));
    if (fit?.grid) fit.grid.e.forEach((v, j) => fit.grid.c[j] <= top && fit.grid.c[j] >= fit.window[0] && values.push(v));
    if (fit) values.push(...fit.A.filter(known));
  }
  const low = Math.floor((Math.min(...values) - 0.01) * 20) / 20;
  const high = Math.ceil((Math.max(...values) + 0.01) * 20) / 20;
  return [Math.max(0, low), Math.min(1, high)];
}

function drawZero(svg, box, zero) {
  const at = box.left + zero - 10;
  svg.append(
    shape("text", { x: box.left + 12, y: box.bottom + 17, "text-anchor": "middle" }, "0"),
    shape("path", { class: "axis", d: `M${at - 5},${box.bottom + 5}l4,-10M${at},${box.bottom + 5}l4,-10` }),
  );
}

function clipTo(svg, box, left) {
  const id = "chart-clip";
  const area = { x: left, y: box.top, width: Math.max(0, box.right - left), height: box.height };
  svg.append(shape("clipPath", { id }, shape("rect", area)));
  return `url(#${id})`;
}

function drawFit(svg, clip, { i, fit }, x, y, box, alone) {
  const { grid, window } = fit;
  const width = state.runs.size > 6 ? 1.3 : 2.2;
  const layer = shape("g", { "clip-path": clip });
  const from = (c) => grid.c.map((v, j) => j).filter((j) => grid.c[j] > c);
  if (state.band && grid.hi.some(known)) {
    const cs = [window[0], ...from(window[0]).map((j) => grid.c[j])];
    const edge = (column) => cs.map((c) => [x(c), along(grid, column, c)]).map(([px, r]) => [px, known(r) ? y(r) : null]);
    const outline = [...edge("hi"), ...edge("lo").reverse()];
    layer.append(shape("path", { class: "band", d: `${path(outline)}Z`, style: { fill: colour(i), opacity: 0.16 } }));
  }
  const end = [window[1], along(grid, "e", window[1])];
  const inside = from(window[0]).filter((j) => grid.c[j] < window[1]).map((j) => [grid.c[j], grid.e[j]]);
  const fitted = [[window[0], along(grid, "e", window[0])], ...inside, end];
  const later = [end, ...from(window[1]).map((j) => [grid.c[j], grid.e[j]])];
  const pixels = (points) => path(points.map(([c, r]) => [x(c), known(r) ? y(r) : null]));
  layer.append(
    shape("path", { class: "fit", d: pixels(fitted), style: stroke(i, { width }) }),
    shape("path", { class: "forecast", d: pixels(later), style: stroke(i, { width, dash: "7 5" }) }),
  );
  svg.append(layer);
  if (!alone || window[1] > x.high) return;
  const at = x(window[1]);
  svg.append(
    shape("line", { class: "rule", x1: at, x2: at, y1: box.top, y2: box.bottom }),
    shape("text", { x: at - 6, y: box.bottom - 8, "text-anchor": "end" }, "fitted"),
    shape("text", { x: at + 6, y: box.bottom - 8 }, "forecast"),
  );
}

function drawPoints(svg, { i, points }, at, y, size) {
  for (const p of points) {
    const px = at(p);
    if (p.se) {
      const ends = { x1: px, x2: px, y1: y(p.r - p.se), y2: y(p.r + p.se) };
      svg.append(shape("line", { class: "se", ...ends, style: stroke(i, { width: 1.4 }) }));
    }
    svg.append(mark(i, px, y(p.r), { open: p.later, size }));
    if (p.out) svg.append(shape("path", { class: "axis", d: `M${px - 7},${y(p.r) - 7}l14,14m0,-14l-14,14` }));
  }
}

function drawCeiling(svg, { i, fit }, px, y) {
  const [A, low, high] = fit.A;
  const line = { x1: px, x2: px, y1: y(low), y2: y(Math.min(high, 1)) };
  svg.append(shape("line", { class: "ceiling", ...line, style: stroke(i, { width: 3, opacity: 0.55 }) }));
  if (known(A)) svg.append(shape("path", { d: `M${px - 5},${y(A)}h10`, style: stroke(i, { width: 2.4 }) }));
}

function stopOf({ run, i, fit }, p, x, y) {
  const lines = [run.name];
  lines.push(`step ${run.curve.step[p.i]} · ${number(p.c, 4)} ${unitLabel(state.x)}`);
  lines.push(`pass rate ${rate(p.r)}${p.se ? ` ± ${rate(p.se)}` : ""}`);
  const passes = Object.entries(run.curve.pass_at_k[p.i] ?? {});
  if (passes.length > 1) lines.push(`pass@${passes.at(-1)[0]} ${rate(passes.at(-1)[1])}`);
  if (fit?.grid && p.c > 0) {
    const [e, lo, hi] = ["e", "lo", "hi"].map((k) => along(fit.grid, k, p.c));
    if (known(e)) lines.push(`${p.later ? "forecast" : "fit"} ${rate(e)}${known(lo) ? ` [${rate(lo)}, ${rate(hi)}]` : ""}`);
  }
  if (p.inside !== null) lines.push(p.inside ? "inside the 90 % band" : "outside the 90 % band");
  if (p.out) lines.push("left out of the fit");
  return { x, y, run: i, lines };
}

// ── F-transform ────────────────────────────────────────────────────────────────────────────────
function drawTransform(svg, box, runs) {
  const sets = runs.map((r) => {
    const fit = fitOf(r.run, state.fit === "off" ? "whole" : state.fit);
    const points = r.points.filter((p) => p.c > 0);
    const placed = points.map((p) => ({ ...p, F: logF(fit, p.r) }));
    return { ...r, fit, placed: placed.filter((p) => p.F), undefined: placed.filter((p) => !p.F).length };
  });
  state.undefined = sets.map((s) => ({ name: s.run.name, n: s.undefined, known: known(s.fit?.A?.[0]) }));
  const all = sets.flatMap((s) => s.placed);
  if (!all.length) return [];
  const cs = all.map((p) => p.c), ys = all.map((p) => p.F.y);
  const x = scale(Math.min(...cs) / 1.2, Math.max(...cs) * 1.12, box.left + 8, box.right, true);
  const pad = 0.08 * (Math.max(...ys) - Math.min(...ys)) + 0.05;
  const yLog = scale(10 ** (Math.min(...ys) - pad), 10 ** (Math.max(...ys) + pad), box.bottom, box.top, true);
  const y = (power) => yLog(10 ** power);
  axes(svg, x, yLog, box, { xTitle: unitLabel(state.x), yFormat: (v) => number(v, 2) });
  svg.append(shape("text", { class: "title", x: box.left + 12, y: box.top + 10 }, "F(R)"));
  const clip = clipTo(svg, box, box.left);
  for (const s of sets) {
    if (!known(s.fit?.B?.[0])) continue;
    const line = (c) => [x(c), y(s.fit.B[0] * Math.log10(c))]; // F = C^B on the curve
    const end = Math.min(x.high, s.fit.window[1]);
    svg.append(
      shape("g", { "clip-path": clip },
        shape("path", { class: "fit", d: path([line(x.low), line(end)]), style: stroke(s.i) }),
        shape("path", { class: "forecast", d: path([line(end), line(x.high)]), style: stroke(s.i, { dash: "7 5" }) })),
    );
  }
  return sets.flatMap((s) => s.placed.map((p) => {
    const px = x(p.c), py = y(p.F.y), sd = p.F.per * (p.se ?? 0);
    const ends = { x1: px, x2: px, y1: y(p.F.y - sd), y2: y(p.F.y + sd) };
    svg.append(
      shape("g", { "clip-path": clip }, shape("line", { class: "se", ...ends, style: stroke(s.i, { width: 1.4 }) })),
      mark(s.i, px, py, { open: p.later }),
    );
    const stop = stopOf({ ...s, fit: null }, p, px, py);
    stop.lines.push(`F(R) = ${number(10 ** p.F.y)}`);
    return stop;
  }));
}

// ── words below the figure ─────────────────────────────────────────────────────────────────────
function drawKey(runs) {
  const fitted = runs.some((r) => r.fit?.grid);
  const first = runs[0]?.i ?? 0;
  const open = runs.some((r) => r.points.some((p) => p.later));
  const item = (glyph, words) => make("span", {}, glyph, words);
  const items = [item(swatch(first), open ? "evaluation that was fitted" : "evaluation (± standard error)")];
  if (open) items.push(item(swatch(first, { open: true }), "later evaluation, not fitted"));
  if (fitted) items.push(item(sample(first), "fit"), item(sample(first, { dash: "7 5" }), "forecast"));
  if (fitted && state.band && state.view === "rate") {
    const patch = { width: 22, height: 12, style: { fill: colour(first), opacity: 0.2 } };
    items.push(item(shape("svg", { width: 22, height: 12, "aria-hidden": "true" }, shape("rect", patch)), "90 % band for an evaluation"));
  }
  byId("key").replaceChildren(...items);
  byId("caption").replaceChildren(captionText(runs));
}

function captionText(runs) {
  const words = [];
  const [prompts, samples] = runs.find((r) => r.run.curve.samples.length)?.run.curve.samples[0] ?? [];
  if (state.view === "F") {
    words.push("F(R) = C_mid^B / ((A − R0)/(R − R0) − 1) turns a fitted curve into a straight line of slope B on log axes; A, R0 and C_mid are those of the fit shown.");
    for (const { name, n, known: told } of state.undefined ?? []) {
      if (!told) words.push(`${name}: A is not identified, so F cannot be computed; choose the fit of the whole run or another unit.`);
      else if (n) words.push(`${name}: ${n} evaluations lie outside (R0, A), where F is not defined, and are not drawn.`);
    }
    return words.join(" ");
  }
  if (known(prompts) && known(samples)) {
    words.push(`Each mark is the mean over ${prompts} held-out prompts of ${samples} completions each; its bar is the standard error of sampling them.`);
  }
  const fitted = runs.some((r) => r.fit?.grid);
  if (fitted && state.fit === "first") words.push(`The fit saw only the first ${percent(page.fit_share)} of the compute; what follows is its forecast.`);
  if (fitted && state.fit === "whole") words.push("The fit saw every evaluation; dashes lead on to 1.8 times the compute spent.");
  const bounded = runs.filter((r) => known(r.fit?.A?.[1])).length;
  if (bounded > 0 && bounded <= MOST_BARS) words.push("Right: 90 % interval of the ceiling A.");
  return words.join(" ");
}
