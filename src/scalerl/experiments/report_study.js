// The verdict table of a study: what each variant does to ceiling and speed, against the base.

const VERDICT_SIGNS = {
  "the base": "●", "raises the ceiling": "▲", "lowers the ceiling": "▼", "speeds up": "»",
  "slows down": "«", "cannot tell": "?", collapses: "✖",
};

function drawStudy() {
  const { study } = page;
  if (!study) return;
  byId("study").hidden = false;
  byId("study-link").hidden = false;
  const triple = ({ estimate, low, high }) => [estimate, low, high];
  const chance = (p) => (known(p) ? p.toFixed(2) : "–");
  const target = known(study.target) ? `Compute to ${rate(study.target)}` : "Compute to target";
  const head = ["Variant", "Verdict", "Runs", "Held-out", "Ceiling A", "Steepness B", "C_mid", target, "P(A above base)", "P(best A)"];
  const bounds = study.variants.flatMap((v) => triple(v.A)).filter(known);
  const room = bounds.length ? scale(Math.min(...bounds), Math.max(...bounds), 4, 76) : null;
  const rows = study.variants.map((v, i) => make("tr", {},
    make("th", { scope: "row" }, swatch(lookOf(v, i)), ` ${v.name}`, make("div", { class: "low" }, v.about)),
    make("td", {}, `${VERDICT_SIGNS[v.verdict] ?? ""} ${v.verdict}`, make("span", { class: "low" }, v.words)),
    make("td", {}, String(v.runs), v.collapsed ? make("span", { class: "low" }, `${v.collapsed} collapsed`) : null),
    make("td", {}, `${rate(v.start)} → ${rate(v.end)}`),
    make("td", {}, interval(triple(v.A), rate), room ? ceilingBar(triple(v.A), lookOf(v, i), room) : null),
    make("td", {}, interval(triple(v.B), (x) => number(x))),
    make("td", {}, interval(triple(v.C_mid), (x) => number(x))),
    make("td", {}, known(v.to_target.estimate) ? interval(triple(v.to_target), (x) => number(x)) : "–"),
    make("td", {}, chance(v.p_better)),
    make("td", {}, chance(v.p_best))));
  byId("study-table").replaceChildren(
    scrolling("Verdict on each variant", head, rows),
    make("p", { class: "note" }, studyNote(study)),
    make("details", {}, make("summary", {}, "The paper's rule, crossing curves, forecasts"), make("dl", { class: "reasons" }, study.variants.flatMap(besideOf), forecastsOf(study))),
    ...study.notes.map((text) => make("p", { class: "note" }, text)),
  );
}

// The run whose colour stands for a variant in the figures.
function lookOf(variant, otherwise) {
  const found = page.runs.findIndex((run) => run.name.startsWith(`${variant.name}/`));
  return found < 0 ? otherwise % page.runs.length : found;
}

function studyNote({ unit, run_sd, run_sd_from }) {
  const whence = run_sd_from ? `estimated from the replicates here (${run_sd_from} degrees of freedom)` : "assumed as in the paper, for no replicates here have ceilings that can be told";
  return `Compute in ${unitLabel(unit)}. Intervals are 90 % and hold the spread between runs: SD of A ${rate(run_sd.estimate)} [${rate(run_sd.low)}, ${rate(run_sd.high)}], ${whence}.`;
}

function besideOf(v) {
  const lines = [];
  if (v.paper) lines.push(make("dt", {}, `${v.name}, the paper's rule`), make("dd", {}, v.paper));
  if (v.crossing) lines.push(make("dt", {}, `${v.name}, crossing`), make("dd", {}, v.crossing));
  return lines;
}

function forecastsOf({ forecasts }) {
  const later = forecasts.reduce((n, f) => n + f.n_later, 0);
  if (!later) return [];
  const inside = forecasts.reduce((n, f) => n + f.n_inside, 0);
  const error = forecasts.reduce((sum, f) => sum + f.mean_error * f.n_later, 0) / later;
  return [make("dt", {}, "Forecasts"), make("dd", {}, `${inside} of ${later} later evaluations in the 90 % band of their forecast; mean error ${signed(error)}`)];
}
