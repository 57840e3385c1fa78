// Everything that is read rather than drawn: warnings, parameters, tokens, completions, settings.

const SIGNS = { red: ["✖", "Stop and look:"], amber: ["▲", "Take care:"], note: ["●", "Note:"], good: ["✔", ""] };
const BADGES = { identified: "✔", weak: "▲", not_identified: "?", unstable: "▲", no_gain: "✖", none: "–" };

function drawWarnings() {
  const lines = gathered(page.warnings).map(({ level, text }) => {
    const [sign, word] = SIGNS[level];
    return make("p", { class: `warning ${level}` }, make("b", {}, `${sign} ${word}`), text);
  });
  const calm = make("p", { class: "warning good" }, make("b", {}, "✔"), "Nothing to warn of: no drawdown, no truncation, and the ceiling is identified.");
  const shown = lines.length > 8
    ? [...lines.slice(0, 6), make("details", {}, make("summary", {}, `${lines.length - 6} more warnings`), lines.slice(6))]
    : lines;
  byId("warnings").replaceChildren(...(shown.length ? shown : [calm]));
}

// With several runs, what is said of more than one in the same words is said once, without details.
function gathered(warnings) {
  if (page.runs.length === 1) return warnings;
  const plain = (w) => w.text.replace(/ \(.*\)$/s, "");
  const same = new Map();
  for (const w of warnings) {
    const key = `${w.level} ${plain(w)}`;
    same.set(key, [...(same.get(key) ?? []), w]);
  }
  return [...same.values()].map((all) => {
    if (all.length === 1) return { level: all[0].level, text: `${all[0].run}: ${all[0].text}` };
    const names = all.map((w) => w.run);
    const more = names.length > 6 ? ` and ${names.length - 5} more of ${page.runs.length} runs` : "";
    return { level: all[0].level, text: `${plain(all[0])}: ${names.slice(0, more ? 5 : 6).join(", ")}${more}` };
  });
}

function drawHeadline() {
  const tile = (name, value, small) => make("div", { class: "tile" }, make("dt", {}, name), make("dd", {}, value, make("small", {}, small)));
  const tiles = page.runs.length === 1 ? runTiles(page.runs[0], tile) : studyTiles(tile);
  byId("headline").replaceChildren(make("dl", { class: "tiles" }, tiles));
}

function runTiles(run, tile) {
  const { curve } = run;
  if (!curve.step.length) return [tile("Evaluations", "0", "none has been written yet")];
  const last = curve.step.length - 1;
  const tiles = [tile("Held-out pass rate", `${rate(curve.pass_rate[0])} → ${rate(curve.pass_rate[last])}`, `step ${curve.step[0]} to ${curve.step[last]}, ${last + 1} evaluations`)];
  const check = run.fits.device_hours?.first?.check;
  if (check) {
    const { estimate, low, high, seen } = check.end;
    tiles.push(tile(`Forecast from the first ${percent(page.fit_share)}`, rate(estimate), `90 % [${rate(low)}, ${rate(high)}]; then measured ${rate(seen)}`));
    tiles.push(tile("Later evaluations in the band", `${check.inside} of ${check.n}`, `mean error ${signed(check.mean_error)}`));
  }
  const whole = run.fits.device_hours?.whole;
  if (known(whole?.A?.[1])) {
    const [A, low, high] = whole.A;
    tiles.push(tile("Ceiling A, whole run", known(A) ? rate(A) : "not identified", `90 % [${rate(low)}, ${rate(high)}]`));
  }
  tiles.push(tile("Compute", `${number(curve.device_hours[last])} h`, `device-hours; ${number(curve.tokens_trained[last])} tokens trained`));
  return tiles;
}

function studyTiles(tile) {
  const ends = page.runs.filter((r) => r.curve.step.length).map((r) => ({ name: r.name, end: r.curve.pass_rate.at(-1), hours: r.curve.device_hours.at(-1) ?? 0 }));
  if (!ends.length) return [tile("Runs", page.runs.length, "none has been evaluated yet")];
  const best = ends.reduce((a, b) => (b.end > a.end ? b : a));
  const worst = ends.reduce((a, b) => (b.end < a.end ? b : a));
  return [
    tile("Runs", page.runs.length, `${ends.length} with evaluations`),
    tile("Highest last pass rate", rate(best.end), best.name),
    tile("Lowest last pass rate", rate(worst.end), worst.name),
    tile("Compute", `${number(ends.reduce((a, b) => a + b.hours, 0))} h`, "device-hours, all runs together"),
  ];
}

// ── parameters ─────────────────────────────────────────────────────────────────────────────────
function drawFits() {
  const runs = shownRuns();
  const parts = runs.length <= 3 ? ["first", "whole"] : [state.fit === "first" ? "first" : "whole"];
  const rows = runs.flatMap(({ run, i }) => parts.map((part) => ({ run, i, part, fit: run.fits[state.x]?.[part] })).filter((r) => r.fit));
  if (!rows.length) {
    byId("fit-table").replaceChildren(make("p", { class: "note" }, "There is nothing to fit yet: no evaluation after step 0."));
    return;
  }
  const bounds = rows.flatMap((r) => r.fit.A ?? []).filter(known);
  const room = scale(Math.min(...bounds), Math.max(...bounds), 4, 76);
  const head = ["Run", "Fitted on", "Status", "Ceiling A", "Steepness B", `C_mid (${unitLabel(state.x)})`, "R0", "Gain reached", "Forecast check"];
  const body = rows.map((row) => make("tr", {}, fitCells(row, room)));
  const notes = ["Intervals are 90 %. Where a value is not identified only its bounds are given."];
  if (bounds.length) notes.push(`The bars of A share one scale, from ${rate(room.low)} to ${rate(room.high)}.`);
  if (parts.length === 1) notes.push("With more than three runs, the fit chosen above is shown; choose fewer runs to see both.");
  byId("fit-table").replaceChildren(
    scrolling("Table of fits", head, body),
    make("p", { class: "note" }, notes.join(" ")),
    make("details", { open: runs.length <= 3 }, make("summary", {}, "Reasons for each status"), make("dl", { class: "reasons" }, rows.map(reasonOf))),
  );
}

const partName = (part) => (part === "first" ? `first ${percent(page.fit_share)}` : "whole run");

function fitCells({ run, i, part, fit }, room) {
  const badge = make("span", { class: `status ${fit.status}` }, `${BADGES[fit.status]} ${fit.status.replace("_", " ")}`);
  return [
    make("th", { scope: "row" }, swatch(i, { open: part === "first" }), ` ${run.name}`),
    make("td", {}, partName(part), make("span", { class: "low" }, `${fit.n} evaluations`)),
    make("td", {}, badge),
    make("td", {}, fit.A ? [interval(fit.A, rate), ceilingBar(fit.A, i, room)] : "–"),
    make("td", {}, interval(fit.B, (v) => number(v))),
    make("td", {}, interval(fit.C_mid, (v) => number(v))),
    make("td", {}, interval(fit.R0, rate)),
    make("td", {}, interval(fit.reached, percent)),
    make("td", {}, checkWords(fit, part)),
  ];
}

function reasonOf({ run, part, fit }) {
  return [make("dt", {}, `${run.name}, ${partName(part)}: ${fit.status.replace("_", " ")}`), make("dd", {}, fit.reasons.join("; "))];
}

function scrolling(label, head, rows) {
  const cells = head.map((words) => make("th", { scope: "col" }, words));
  const table = make("table", {}, make("thead", {}, make("tr", {}, cells)), make("tbody", {}, rows));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, table);
}

function interval(triple, format) {
  if (!triple || triple.every((v) => !known(v))) return "–";
  const [estimate, low, high] = triple;
  const bounds = known(low) && known(high) ? `[${format(low)}, ${format(high)}]` : "";
  if (!known(estimate)) return [make("span", {}, bounds), make("span", { class: "low" }, "bounds only")];
  return [make("span", {}, format(estimate)), make("span", { class: "low" }, bounds)];
}

function ceilingBar([A, low, high], i, at) {
  if (!known(low)) return null;
  return shape("svg", { width: 80, height: 10, "aria-hidden": "true" },
    shape("line", { class: "grid", x1: 2, x2: 78, y1: 5, y2: 5 }),
    shape("line", { x1: at(low), x2: at(high), y1: 5, y2: 5, style: stroke(i, { width: 3 }) }),
    known(A) ? shape("line", { x1: at(A), x2: at(A), y1: 0, y2: 10, style: stroke(i) }) : null);
}

function checkWords(fit, part) {
  if (part === "whole") return make("span", { class: "low" }, "nothing left");
  if (!fit.check) return "–";
  const { inside, n, mean_error: error } = fit.check;
  return [make("span", {}, `${inside} of ${n} in the band`), make("span", { class: "low" }, `mean error ${signed(error)}`)];
}

function drawPointTable() {
  const head = ["Run", "Step", "Pass rate", "± se", ...page.units.filter((u) => u.key !== "step").map((u) => u.label), "Entropy", "Mean length", "Truncated", "Interrupted"];
  const keys = page.units.map((u) => u.key).filter((k) => k !== "step");
  const rows = shownRuns().flatMap(({ run }) => run.curve.step.map((step, j) => {
    const { curve } = run;
    const cells = [step, rate(curve.pass_rate[j]), rate(curve.pass_rate_se[j]), ...keys.map((k) => number(curve[k][j], 4)),
      number(curve.entropy[j]), number(curve.mean_length[j]), percent(curve.truncation_rate[j]), percent(curve.interruption_rate[j])];
    return make("tr", {}, make("th", { scope: "row" }, run.name), cells.map((c) => make("td", { class: "number" }, String(c))));
  }));
  const table = make("table", {}, make("thead", {}, make("tr", {}, head.map((h, k) => make("th", { scope: "col", class: k ? "number" : "" }, h)))), make("tbody", {}, rows));
  byId("points").querySelector(".scroll").replaceChildren(table);
}

// ── tokens ─────────────────────────────────────────────────────────────────────────────────────
const LEDGER = [["trained", "Trained on"], ["masked", "Masked"], ["filtered", "Group without variance"], ["truncated", "Truncated, left out"], ["discarded", "Discarded"], ["waiting", "Waiting"]];

function drawLedger() {
  const runs = shownRuns().filter(({ run }) => run.ledger.generated);
  if (!runs.length) {
    byId("ledger").replaceChildren(make("p", { class: "note" }, "No token account has been written yet."));
    return;
  }
  const rows = runs.map(({ run, i }) => make("tr", {},
    make("th", { scope: "row" }, swatch(i), ` ${run.name}`),
    make("td", {}, number(run.ledger.generated, 4)),
    LEDGER.map(([key]) => {
      const share = (run.ledger[key] ?? 0) / run.ledger.generated;
      const bar = make("i", { style: { width: `${(share * 70).toFixed(1)}%`, background: colour(i) } });
      return make("td", { class: "share" }, percent(share), make("span", { class: "low" }, number(run.ledger[key], 4)), bar);
    })));
  const head = ["Run", "Generated", ...LEDGER.map(([, words]) => words)];
  const closed = runs.every(({ run }) => LEDGER.reduce((sum, [key]) => sum + (run.ledger[key] ?? 0), 0) === run.ledger.generated);
  const words = closed ? "The account closes: generated = trained + masked + filtered + truncated + discarded + waiting." : "The account does not close: tokens were lost or counted twice.";
  byId("ledger").replaceChildren(scrolling("Token account", head, rows), make("p", { class: "note" }, words));
}

// ── settings ───────────────────────────────────────────────────────────────────────────────────
function drawSettings() {
  const parts = [];
  if (page.runs.length > 1) {
    const { differences } = page;
    const head = ["Setting", ...page.runs.map((r) => r.name)];
    const rows = differences.map(({ key, values }) => make("tr", {},
      make("th", { scope: "row" }, make("code", {}, key)),
      values.map((v) => make("td", { class: v === values[0] ? "" : "differs" }, v ?? "not set"))));
    parts.push(differences.length
      ? scrolling("Settings that differ", head, rows)
      : make("p", { class: "note" }, "All runs have the same settings."));
    parts.push(make("p", { class: "note" }, "Settings in which a run differs from the first; bold where it does."));
  }
  for (const run of page.runs) {
    const text = run.config || "config.toml is missing or cannot be read.";
    parts.push(make("details", {}, make("summary", {}, `All settings of ${run.name} (config.toml)`), make("pre", { class: "config" }, text)));
  }
  byId("config").replaceChildren(...parts);
}
