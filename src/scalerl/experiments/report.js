// The page: one state, controls that change it, and the figures drawn again from it.

const page = JSON.parse(byId("values").textContent);
const root = document.documentElement;
const state = {
  x: page.study?.unit ?? page.units[0].key,
  log: true,
  view: "rate",
  fit: page.fit_share < 1 ? "first" : "whole",
  band: page.runs.length <= 3,
  runs: new Set(page.runs.map((_, i) => i)),
  read: { run: 0, sides: [], first: 0 },
};
const READ_AT_ONCE = 5;
const faults = [];
window.addEventListener("error", (event) => {
  faults.push(event.message);
  root.dataset.faults = faults.join(" | ");
});

// A study names its runs variant/seed: a variant gets one look, if there are several of them.
function groupRuns() {
  const variants = page.runs.map((run) => run.name.split("/").slice(0, -1).join("/") || run.name);
  const distinct = [...new Set(variants)];
  page.runs.forEach((run, i) => (run.look = distinct.length > 1 ? distinct.indexOf(variants[i]) : i));
}

function redraw() {
  drawChart();
  drawFits();
  drawPanels();
  drawLedger();
  drawPointTable();
  root.dataset.shows = [state.x, state.log ? "log" : "linear", state.view, state.fit, state.band ? "band" : "line", [...state.runs].join("+")].join(" ");
}

// ── controls of the figures ────────────────────────────────────────────────────────────────────
function choice(name, words, options, chosen, set) {
  const inputs = options.map(([value, label]) => make("label", {},
    make("input", { type: "radio", name, value, checked: value === chosen, onchange: () => set(value) }), make("span", {}, label)));
  return make("fieldset", {}, make("legend", {}, words), make("span", { class: "choice" }, inputs));
}

function drawControls() {
  const set = (key) => (value) => {
    state[key] = value;
    byId("controls").querySelectorAll("[name=axis]").forEach((i) => (i.disabled = state.view === "F"));
    redraw();
  };
  const units = page.units.filter((u) => page.runs.some((r) => r.curve[u.key].some(known)));
  const axis = make("select", { id: "x", onchange: (e) => set("x")(e.target.value) }, (units.length ? units : page.units).map((u) => make("option", { value: u.key, selected: u.key === state.x }, u.label)));
  const fits = [["whole", "Whole run"], ["off", "Off"]];
  if (page.fit_share < 1) fits.unshift(["first", `First ${percent(page.fit_share)}`]);
  state.x = axis.value;
  const band = make("input", { type: "checkbox", id: "band", checked: state.band, onchange: (e) => set("band")(e.target.checked) });
  byId("controls").replaceChildren(
    make("label", {}, make("span", {}, "Compute as"), axis),
    choice("axis", "Compute axis", [["log", "Log"], ["linear", "Linear"]], "log", (v) => set("log")(v === "log")),
    choice("view", "Show", [["rate", "Pass rate"], ["F", "F-transform"]], state.view, set("view")),
    choice("fit", "Fit", fits, state.fit, set("fit")),
    make("label", { class: "check" }, band, "90 % band"),
  );
}

function drawRunChoice() {
  if (page.runs.length < 2) return;
  const boxes = page.runs.map((run, i) => make("input", {
    type: "checkbox", checked: true, value: i,
    onchange: (e) => (e.target.checked ? state.runs.add(i) : state.runs.delete(i), redraw()),
  }));
  const all = (on) => () => {
    state.runs = new Set(on ? page.runs.map((_, i) => i) : []);
    boxes.forEach((b) => (b.checked = on));
    redraw();
  };
  byId("runs").replaceChildren(
    make("div", { class: "row" }, make("strong", {}, "Runs"), make("button", { type: "button", onclick: all(true) }, "All"), make("button", { type: "button", onclick: all(false) }, "None")),
    make("div", { class: "runs", role: "group", "aria-label": "Runs shown" },
      page.runs.map((run, i) => make("label", { class: "check", title: run.name }, boxes[i], swatch(i), make("span", {}, run.name)))),
  );
}

// ── completions: two evaluations side by side ──────────────────────────────────────────────────
const OUTCOMES = [["any", "any outcome"], ["correct", "correct"], ["wrong", "wrong"], ["truncated", "truncated"], ["interrupted", "interrupted"]];

function fits(answer, outcome) {
  if (outcome === "any" || !answer) return outcome === "any";
  if (outcome === "truncated" || outcome === "interrupted") return answer[outcome];
  return (answer.outcome === "correct" && !answer.truncated) === (outcome === "correct");
}

function drawReader() {
  const { texts } = page.runs[state.read.run];
  const last = texts.evaluations.length - 1;
  state.read.sides = [{ at: 0, outcome: "any" }, { at: Math.max(0, last), outcome: "any" }];
  state.read.first = 0;
  const pick = (label, id, options, value, set) => make("label", {}, make("span", {}, label),
    make("select", { id, onchange: (e) => (set(e.target.value), (state.read.first = 0), drawPairs()) },
      options.map(([v, words]) => make("option", { value: v, selected: String(v) === String(value) }, words))));
  const which = texts.evaluations.map((e, k) => [k, `${e.label} (step ${e.step})`]);
  const controls = state.read.sides.flatMap((side, k) => [
    pick(k ? "Right" : "Left", `read-at-${k}`, which, side.at, (v) => (side.at = Number(v))),
    pick("that is", `read-outcome-${k}`, OUTCOMES, side.outcome, (v) => (side.outcome = v)),
  ]);
  if (page.runs.length > 1) {
    const choose = (e) => ((state.read.run = Number(e.target.value)), drawReader(), byId("read-run").focus());
    controls.unshift(make("label", {}, make("span", {}, "Run"), make("select", { id: "read-run", onchange: choose },
      page.runs.map((r, i) => make("option", { value: i, selected: i === state.read.run }, r.name)))));
  }
  const empty = make("p", { class: "note" }, "No completion has been written out yet.");
  const bar = make("div", { class: "reader" }, controls);
  byId("reader").replaceChildren(...(last < 0 ? (page.runs.length > 1 ? [bar, empty] : [empty]) : [bar, make("div", { id: "pairs", "aria-live": "polite" })]));
  if (last >= 0) drawPairs();
}

function drawPairs() {
  const { texts } = page.runs[state.read.run];
  const sides = state.read.sides.map((s) => ({ ...s, evaluation: texts.evaluations[s.at] }));
  const found = texts.prompts.map((p, j) => ({ ...p, answers: sides.map((s) => s.evaluation.answers[j]) }))
    .filter((p) => p.answers.every((a, k) => fits(a, sides[k].outcome)));
  const { first } = state.read;
  const shown = found.slice(first, first + READ_AT_ONCE);
  const turn = (by) => () => ((state.read.first += by), drawPairs(), byId("pairs").querySelector("button:enabled")?.focus());
  const counted = found.length ? `${first + 1} to ${first + shown.length} of ${found.length} prompts` : "No prompt has both outcomes";
  byId("pairs").replaceChildren(
    ...shown.map((p) => make("article", { class: "pair" },
      make("p", {}, make("b", {}, "Prompt "), p.prompt, "  ", make("b", {}, "Answer "), p.answer),
      make("div", {}, p.answers.map((a, k) => said(a, sides[k].evaluation))))),
    make("div", { class: "row" },
      make("button", { type: "button", disabled: first === 0, onclick: turn(-READ_AT_ONCE) }, "← Five before"),
      make("button", { type: "button", disabled: first + READ_AT_ONCE >= found.length, onclick: turn(READ_AT_ONCE) }, "Five more →"),
      make("span", { class: "note" }, `${counted}, of ${texts.prompts.length} written out`)),
  );
}

function said(answer, evaluation) {
  const where = `step ${evaluation.step}`;
  if (!answer) return make("div", { class: "said" }, make("h3", {}, where), make("p", { class: "note" }, "not written out"));
  const right = answer.outcome === "correct" && !answer.truncated;
  const words = [right ? "✔ correct" : `✖ ${String(answer.outcome).replace("_", " ")}`];
  const tags = [];
  if (answer.truncated) tags.push(make("b", { class: "cut" }, "▲ truncated"));
  if (answer.interrupted) tags.push(make("b", { class: "cut" }, "▲ interrupted"));
  const facts = [where, `${answer.tokens ?? "?"} tokens`];
  if (known(answer.pass_rate)) facts.push(`${percent(answer.pass_rate)} of its completions correct`);
  return make("div", { class: "said" },
    make("h3", {}, make("b", { class: right ? "right" : "wrong" }, words[0]), tags, facts.join(" · ")), make("pre", { tabindex: 0 }, answer.text));
}

// ── start ──────────────────────────────────────────────────────────────────────────────────────
function setTheme(dark) {
  root.dataset.theme = dark ? "dark" : "light";
  byId("theme").setAttribute("aria-pressed", String(dark));
  byId("theme").textContent = dark ? "Light" : "Dark";
}

function start() {
  const prefers = window.matchMedia("(prefers-color-scheme: dark)");
  setTheme(prefers.matches);
  prefers.addEventListener("change", (e) => setTheme(e.matches));
  byId("theme").addEventListener("click", () => setTheme(root.dataset.theme !== "dark"));
  byId("kind").textContent = page.runs.length === 1 ? "Reinforcement learning run" : `Reinforcement learning study, ${page.runs.length} runs`;
  byId("footer").textContent = `Made by scalerl ${page.version}. This file holds everything it shows.`;
  byId("controls").addEventListener("submit", (e) => e.preventDefault());
  groupRuns();
  drawWarnings();
  drawHeadline();
  drawStudy();
  drawControls();
  drawRunChoice();
  drawReader();
  drawSettings();
  redraw();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    drawChart();
    drawPanels();
  });
  root.dataset.ready = "yes";
}

start();
