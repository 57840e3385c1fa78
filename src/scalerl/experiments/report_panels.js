// Training panels: small figures of the step log on the same compute axis, one colour a run.

const PANELS = [
  { title: "Training pass rate", lines: [["pass_rate", ""]] },
  { title: "Reward", lines: [["reward_mean", ""]], format: (v) => number(v) },
  { title: "Entropy (nats)", lines: [["entropy", ""]], format: (v) => number(v) },
  { title: "Completion length (tokens)", lines: [["length_mean", "mean"], ["length_max", "longest", "plain"]], format: (v) => number(v) },
  { title: "Completions not finished", lines: [["truncation_rate", "truncated"], ["interruption_rate", "interrupted"]], format: percent, floor: 0, rise: 0.01 },
  { title: "Staleness (optimiser steps)", lines: [["staleness_mean", "mean"], ["staleness_max", "oldest token", "plain"]], format: (v) => number(v), floor: 0, rise: 1 },
  { title: "Throughput (tokens a device-second)", lines: [["generator_speed", "generator"], ["trainer_speed", "trainer"]], format: (v) => number(v), floor: 0 },
  { title: "Idle share of device time", lines: [["generator_idle", "generator"], ["trainer_idle", "trainer"]], format: percent, floor: 0 },
  { title: "Groups", lines: [["kept", "trained on"], ["no_variance", "left out: all alike"]], format: percent, floor: 0 },
  { title: "Mismatch |log π_train − log π_gen|", lines: [["mismatch_mean", "mean"], ["mismatch_max", "largest", "plain"]], format: (v) => number(v, 2), log: true },
  { title: "Prompts retired", lines: [["prompts_retired", "", "plain"]], format: (v) => number(v), floor: 0, rise: 1 },
  { title: "Gradient norm", lines: [["gradient_norm", ""]], format: (v) => number(v), floor: 0 },
  { title: "Effective sample share", lines: [["ess_share", ""]], format: rate },
  { title: "Held-out pass@k", lines: "pass_at_k" },
];
const DASHES = ["", "5 4"];

function drawPanels() {
  const holder = byId("panels");
  const runs = shownRuns();
  const steps = runs.some(({ run }) => run.training.columns.step.length);
  const note = byId("training-note");
  if (!steps) {
    note.textContent = "No optimiser step has been logged yet.";
    holder.replaceChildren();
    return;
  }
  const thinned = Math.max(...runs.map(({ run }) => run.training.per_point));
  const words = [`Against ${unitLabel(state.x)}, as chosen above. Lengths and rates are those before any filter or mask.`];
  if (runs.length > 1) words.push("Colours are those of the runs above.");
  words.push(runs.length <= 2 ? "Thin lines are single steps, thick ones their running mean." : "Lines are running means; longest, oldest and largest are single steps.");
  if (thinned > 1) words.push(`Long runs are thinned: a point stands for up to ${thinned} steps (mean; the largest for maxima).`);
  note.textContent = words.join(" ");
  const figures = PANELS.map((panel) => drawPanel(panel, runs)).filter(Boolean);
  holder.replaceChildren(...figures.map((f) => f.figure));
  figures.forEach((f) => f.draw());
}

// The panel's lines: [{i, run, label, dash, points: [[c, v, step]]}].
function panelLines(panel, runs) {
  if (panel.lines === "pass_at_k") return runs.flatMap(passLines);
  return runs.flatMap(({ run, i }) => panel.lines.map(([key, label, plain], k) => {
    const { columns } = run.training;
    const points = (columns[key] ?? []).map((v, j) => [columns[state.x][j], v, columns.step[j]]);
    return { i, run, label, plain, dash: DASHES[k], points: points.filter(([c]) => known(c)) };
  })).filter((line) => line.points.some(([, v]) => known(v)));
}

function passLines({ run, i }) {
  const ks = Object.keys(run.curve.pass_at_k[0] ?? {});
  return [...new Set([ks[0], ks.at(-1)])].filter(Boolean).map((key, k) => {
    const points = run.curve.pass_at_k.map((p, j) => [run.curve[state.x][j], p[key], run.curve.step[j]]);
    return { i, run, label: `k = ${key}`, plain: "plain", dash: DASHES[k], points: points.filter(([c]) => known(c)) };
  }).filter((line) => line.points.length);
}

function drawPanel(panel, runs) {
  const lines = panelLines(panel, runs);
  if (!lines.length) return null;
  const labels = [...new Map(lines.filter((l) => l.label).map((l) => [l.label, l.dash]))];
  const first = lines[0].i;
  const key = make("div", { class: "key" }, labels.map(([label, dash]) => make("span", {}, sample(first, { dash }), label)));
  const chart = make("div", { class: "chart" });
  const figure = make("figure", {}, make("h3", {}, panel.title), key, chart);
  return { figure, draw: () => drawLines(chart, panel, lines) };
}

function drawLines(holder, panel, lines) {
  const width = Math.max(240, holder.clientWidth), height = 178;
  const svg = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  holder.replaceChildren(svg);
  const box = { left: 46, right: width - 8, top: 8, bottom: height - 24, height: height - 32 };
  const cs = lines.flatMap((l) => l.points.map(([c]) => c));
  const x = scale(0, Math.max(...cs, 1e-12), box.left, box.right);
  const y = panelScale(panel, lines, box);
  axes(svg, x, y, box, { yFormat: panel.format ?? rateTick, xRoom: width / 80, yRoom: 4 });
  const few = new Set(lines.map((l) => l.i)).size <= 2;
  for (const line of lines) {
    const at = (points) => path(points.map(([c, v]) => [x(c), known(v) && (!y.log || v > 0) ? y(v) : null]));
    const smooth = !line.plain && line.points.length > 24;
    if (smooth && few) svg.append(shape("path", { d: at(line.points), style: stroke(line.i, { width: 1, opacity: 0.3 }) }));
    const style = stroke(line.i, { width: line.plain ? 1.5 : 2.1, dash: line.dash, opacity: line.plain && line.dash && !few ? 0.4 : 1 });
    svg.append(shape("path", { class: "line", d: at(smooth ? smoothed(line.points) : line.points), style }));
  }
  pointPanel(holder, svg, panel, lines, x, y, box);
}

function panelScale(panel, lines, box) {
  const values = lines.flatMap((l) => l.points.map(([, v]) => v)).filter(known);
  const positive = values.filter((v) => v > 0);
  if (panel.log && positive.length) {
    return scale(Math.min(...positive) / 1.5, Math.max(...positive) * 1.5, box.bottom, box.top, true);
  }
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (known(panel.floor)) low = Math.min(low, panel.floor);
  const least = panel.rise ?? Math.max(1e-6, 0.02 * Math.abs(high));
  if (high - low < least) {
    const spare = least - (high - low);
    [low, high] = known(panel.floor) ? [low, high + spare] : [low - spare / 2, high + spare / 2];
  }
  return scale(low, high + 0.04 * (high - low), box.bottom, box.top);
}

// Centred running mean over a twentieth of the points.
function smoothed(points) {
  const half = Math.max(1, Math.round(points.length / 40));
  return points.map(([c, , step], j) => {
    const near = points.slice(Math.max(0, j - half), j + half + 1).map(([, v]) => v).filter(known);
    return [c, near.length ? near.reduce((a, b) => a + b, 0) / near.length : null, step];
  });
}

function pointPanel(holder, svg, panel, lines, x, y, box) {
  const format = panel.format ?? rate;
  const main = lines.reduce((a, b) => (b.points.length > a.points.length ? b : a));
  const stops = main.points.map(([c, , step]) => {
    const named = lines.map((line) => {
      const p = line.points.reduce((a, b) => (Math.abs(b[0] - c) < Math.abs(a[0] - c) ? b : a));
      const who = [lines.some((l) => l.i !== line.i) ? line.run.name : "", line.label].filter(Boolean).join(", ");
      return `${who ? `${who}: ` : ""}${format(p[1])}`;
    });
    return { x: x(c), y: box.top + 40, run: 0, lines: [`step ${step}`, ...named.slice(0, 12)] };
  });
  const near = (px) => {
    const gaps = stops.map((s) => Math.abs(s.x - px));
    return gaps.indexOf(Math.min(...gaps));
  };
  const show = (s, layer) => layer.append(shape("line", { class: "cursor", x1: s.x, x2: s.x, y1: box.top, y2: box.bottom }));
  const label = `${panel.title} against ${unitLabel(state.x)}. Arrow keys move along the steps.`;
  pointable(holder, svg, stops, { near, show, label });
}
