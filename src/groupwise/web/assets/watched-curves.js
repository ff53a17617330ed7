// The curves of the dashboard: lines of the chosen runs, drawn once visible, smoothed on request.
import { change, state } from "./address.js";
import { drawChart, makeChart, pointer } from "./charts.js";
import { lastKnown, smoothed, smoothedLogs } from "./curves.js";
import { button, byId, colourOf, make, NUM_COLOURS } from "./dom.js";
import { isNumber } from "./numbers.js";
import { PHASES } from "./panels.js";
import { chosenRuns, columnOf, dataOf, meaningOf, nameOf, slots, stagesOf, stepRange, unitOf, watched }
  from "./runs.js";
import { explodes } from "./scales.js";
import { visible } from "./visible.js";

// Shown even without lines, with this text.
const EMPTY = { pass_at_1: "No held-out evaluation yet.", reward: "No step with a reward yet." };
// A chart of the catalogue, or a metric added by name, as a panel.
const panelOf = (chart) => {
  const metrics = Object.keys(chart.metrics);
  const meaning = chart.kind === "stack" ? "Seconds of each step, for the selected run" : meaningOf(metrics[0]);
  const why = chart.share_of ? chart.caption : [meaning, chart.caption].filter(Boolean).join(". ");
  return { ...chart, metrics, words: Object.values(chart.metrics), why, isEval: metrics[0].startsWith("eval/"),
    nothing: EMPTY[chart.name] || (chart.isAdded ? "No selected run has recorded this metric." : "") };
};
const linesOf = (panel) => {
  if (panel.isEval) return evalLines(panel);
  return panel.kind === "stack" ? stackLines(panel) : metricLines(panel);
};
// One run: a line for each metric of the panel. Several runs: a line each in its colour; dashed after the last colour.
const lookOf = (id, number, words) => {
  const isAlone = chosenRuns().length === 1;
  const slot = slots.get(id) + (isAlone ? number : 0);
  return { name: isAlone ? words : nameOf(id), dash: Math.floor(slot / NUM_COLOURS), colour: colourOf(slot) };
};
const metricLines = (panel) => chosenRuns().flatMap((id) => {
  const data = dataOf(id);
  const isAlone = chosenRuns().length === 1;
  const columns = panel.metrics.map((metric) => columnOf(data, metric))
    .map((column) => (column && lastKnown(column) >= 0 ? column : null));
  const counts = panel.share_of ? columnOf(data, panel.share_of) : null;
  const part = (column) => (panel.share_of ? column.map((value, index) =>
    (counts && counts[index] && isNumber(value) ? value / counts[index] : null)) : column);
  const words = panel.words.length > 1 ? panel.words : [""];
  const line = (column, number) => ({ ...lookOf(id, number, words[number]), x: data.steps, y: part(column) });
  const found = columns.map((column, number) => [column, number]).filter(([column]) => column);
  if (isAlone || !found.length) return found.map(([column, number]) => line(column, number));
  // Several runs have one line each: shares are added up, of other metrics the first is shown.
  if (!panel.share_of) return found.slice(0, 1).map(([column]) => line(column, 0));
  return [line(found[0][0].map((value, index) => (isNumber(value)
    ? found.reduce((sum, [column]) => sum + (column[index] || 0), 0) : null)), 0)];
});
const evalLines = (panel) => chosenRuns().flatMap((id) => {
  const { evals } = dataOf(id);
  const field = panel.metrics[0].slice("eval/".length);
  if (!evals.length) return [];
  const line = { ...lookOf(id, 0, ""), x: evals.map((entry) => entry.step), y: evals.map((entry) => entry[field]) };
  if (field === "pass_at_1") {
    line.low = evals.map((entry) => entry.low);
    line.high = evals.map((entry) => entry.high);
  }
  return [line];
});
const stackLines = (panel) => {
  const data = dataOf(state.run);
  return panel.metrics.flatMap((metric) => {
    const column = columnOf(data, metric);
    const name = metric.slice("time/".length, -"_s".length);
    if (!column || !column.some((value) => value > 0)) return [];
    const colour = colourOf(PHASES.find(([phase]) => phase === name)[1]);
    return [{ name, dash: 0, colour, x: data.steps, y: column }];
  });
};

// A chart in a card with its title, unit and meaning.
const figureOf = (panel) => {
  const chart = makeChart(panel.name);
  const figure = make("figure", "chart card");
  figure.dataset.panel = panel.name;
  const caption = make("figcaption");
  const unit = make("span", "unit");
  caption.append(make("span", "", visible(panel.title)), unit, chart.step);
  if (panel.isEval) chart.readout.classList.add("long");
  figure.append(caption, make("p", "why", visible(panel.why)), chart.plot, chart.readout);
  if (panel.isAdded) {
    const drop = button("✕", () => {
      change({ more: state.more.filter((metric) => metric !== panel.metrics[0]) });
      buildCharts();
      showCharts();
    });
    drop.setAttribute("aria-label", "Remove " + visible(panel.title));
    caption.append(drop);
  }
  return Object.assign(chart, { panel, figure, unit, isSeen: false, isStale: true });
};
const unitWord = (unit) => (unit === "share" || unit === "count" || unit === "bytes" ? "" : unit || "");

const redraw = (chart) => {
  const { panel } = chart;
  chart.isStale = false;
  const lines = linesOf(panel);
  chart.figure.hidden = lines.length === 0 && !panel.nothing;
  const isLog = (state.log === "1" || (panel.may_be_log && explodes(lines))) && panel.kind === "line"
    && lines.some((line) => line.y.some((value) => value > 0));
  const weight = panel.kind === "line" ? Number(state.smooth) : 0;
  for (const line of lines) line.shown = (isLog ? smoothedLogs : smoothed)(line.y, weight);
  chart.unit.textContent = [unitWord(panel.unit), isLog ? "log" : ""].filter(Boolean).join(", ");
  const all = stagesOf(state.run);
  const stages = all.length > 1 ? all : [];
  // Several runs may be in different stages.
  const named = chosenRuns().length > 1 ? [] : stages;
  const stageAt = (step) => (named.find(({ first, last }) => step >= first && step <= last) || { name: "" }).name;
  drawChart(chart, { title: panel.title, unit: panel.unit, kind: panel.kind, lines, steps: stepRange(), stages, stageAt,
    heightOf: (width) => (width > 520 ? 210 : 170), isLog, hasErrorBars: true, nothing: panel.nothing });
};

// Only visible charts are drawn; the others are drawn when they come into view.
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = pointer.charts.find((other) => other.figure === entry.target);
    if (chart) chart.isSeen = entry.isIntersecting;
  }
  drawStale();
}, { rootMargin: "200px" });
// Drawing takes a few milliseconds per frame, so that many long runs do not block scrolling or a slider.
const FRAME_MS = 10;
let isDrawing = false;
const drawStale = () => {
  const wanted = pointer.charts.filter((chart) => chart.isSeen && chart.isStale && !chart.figure.hidden);
  if (isDrawing || !wanted.length || state.view !== "overview") return;
  isDrawing = true;
  requestAnimationFrame(() => {
    const begin = performance.now();
    for (const chart of wanted) {
      if (chart.isStale) redraw(chart);
      if (performance.now() - begin > FRAME_MS) break;
    }
    isDrawing = false;
    drawStale();
  });
};

let built = null;
const wantedCharts = () => JSON.stringify([watched.charts.length, state.more]);
const buildCharts = () => {
  watcher.disconnect();
  const added = state.more.map((metric) => {
    return { name: "more-" + metric, title: metric, isAdded: true, metrics: { [metric]: "" }, unit: unitOf(metric),
      kind: metric.startsWith("eval/") ? "points" : "line", caption: "" };
  });
  pointer.charts = [...watched.charts, ...added].map((chart) => figureOf(panelOf(chart)));
  byId("charts").replaceChildren(...pointer.charts.map((chart) => chart.figure));
  for (const chart of pointer.charts) watcher.observe(chart.figure);
  built = wantedCharts();
};
export const showCharts = () => {
  const { charts } = pointer;
  if (state.view !== "overview") { for (const chart of charts) chart.isStale = true; return; }
  if (built !== wantedCharts()) buildCharts();
  for (const chart of pointer.charts) {
    chart.isStale = true;
    // A hidden chart never comes into view, so this is decided here.
    const isHidden = linesOf(chart.panel).length === 0 && !chart.panel.nothing;
    if (chart.figure.hidden !== isHidden) chart.figure.hidden = isHidden;
  }
  drawStale();
  offerMetrics();
};
const offerMetrics = () => {
  const names = new Set(Object.keys(watched.catalogue).filter((name) => !name.endsWith("/")));
  for (const id of chosenRuns()) for (const name of dataOf(id).columns.keys()) names.add(name);
  const list = byId("metric-names");
  if (list.children.length === names.size) return;
  list.replaceChildren(...[...names].map((name) => {
    const option = make("option", "", visible(meaningOf(name)));
    option.value = name;
    return option;
  }));
};

const smooth = byId("smooth");
export const showTools = () => {
  smooth.value = state.smooth;
  byId("smooth-value").textContent = state.smooth === "0" ? "off" : state.smooth;
  byId("log").setAttribute("aria-pressed", String(state.log === "1"));
};
const retool = (changes) => {
  change(changes);
  showTools();
  showCharts();
};
smooth.addEventListener("input", () => retool({ smooth: String(Number(smooth.value)) }));
byId("log").addEventListener("click", () => retool({ log: state.log === "1" ? "" : "1" }));
const picker = byId("metric");
const addMetric = () => {
  const name = picker.value.trim();
  const isKnown = [...byId("metric-names").children].some((option) => option.value === name);
  if (!isKnown) { picker.setCustomValidity(name ? "Unknown metric: choose one from the list." : ""); return; }
  picker.setCustomValidity("");
  picker.value = "";
  if (state.more.includes(name)) return;
  change({ more: [...state.more, name] });
  showCharts();
  pointer.charts.at(-1).figure.scrollIntoView({ block: "nearest" });
};
picker.addEventListener("input", () => picker.setCustomValidity(""));
picker.addEventListener("change", () => { addMetric(); picker.reportValidity(); });
let drawnWidth = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === drawnWidth) return;
  drawnWidth = innerWidth;
  showCharts();
});
