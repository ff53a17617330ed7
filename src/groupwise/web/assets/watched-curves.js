// The curves of the dashboard: lines of the chosen runs, drawn when they can be seen, smoothed as wanted.
import { change, state } from "./address.js";
import { drawChart, makeChart, pointer } from "./charts.js";
import { lastKnown, smoothed, smoothedLogs } from "./curves.js";
import { button, byId, colourOf, make, NUM_COLOURS } from "./dom.js";
import { isNumber } from "./numbers.js";
import { PANELS, PHASES } from "./panels.js";
import { chosenRuns, columnOf, dataOf, meaningOf, nameOf, slots, stagesOf, stepRange, unitOf, watched }
  from "./runs.js";
import { explodes } from "./scales.js";
import { visible } from "./visible.js";

const panelOf = (table) => {
  const metric = table.metric || table.metrics[0];
  const why = table.kind === "stack" ? "Seconds of each step, of the run in front" : meaningOf(metric);
  return { ...table, unit: table.unit ?? unitOf(metric), why: table.why ?? why };
};
const linesOf = (panel) => {
  if (panel.isEval) return evalLines(panel);
  return panel.kind === "stack" ? stackLines(panel) : metricLines(panel);
};
// One run: a line for each metric of the panel. Several: one line each, in its colour; past the last colour, dashed.
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
  const counts = panel.per ? columnOf(data, panel.per) : null;
  const part = (column) => (panel.per ? column.map((value, index) =>
    (counts && counts[index] && isNumber(value) ? value / counts[index] : null)) : column);
  const line = (column, number) => ({ ...lookOf(id, number, panel.words ? panel.words[number] : ""), x: data.steps,
    y: part(column) });
  const found = columns.map((column, number) => [column, number]).filter(([column]) => column);
  if (isAlone || !found.length) return found.map(([column, number]) => line(column, number));
  if (!panel.isSum) return found.slice(0, 1).map(([column]) => line(column, 0));
  return [line(found[0][0].map((value, index) => (isNumber(value)
    ? found.reduce((sum, [column]) => sum + (column[index] || 0), 0) : null)), 0)];
});
const evalLines = (panel) => chosenRuns().flatMap((id) => {
  const { evals } = dataOf(id);
  const field = panel.metric.slice("eval/".length);
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

// A chart with its card: a panel's title, unit and meaning around it.
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
      change({ more: state.more.filter((metric) => metric !== panel.metric) });
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
  chart.figure.hidden = lines.length === 0 && !panel.isAlways;
  const isLog = (state.log === "1" || (panel.mayBeLog && explodes(lines))) && !panel.kind
    && lines.some((line) => line.y.some((value) => value > 0));
  const weight = panel.kind ? 0 : Number(state.smooth);
  for (const line of lines) line.shown = (isLog ? smoothedLogs : smoothed)(line.y, weight);
  chart.unit.textContent = [unitWord(panel.unit), isLog ? "log" : ""].filter(Boolean).join(", ");
  const all = stagesOf(state.run);
  const stages = all.length > 1 ? all : [];
  // Of several runs each may be in a stage of its own.
  const named = chosenRuns().length > 1 ? [] : stages;
  const stageAt = (step) => (named.find(({ first, last }) => step >= first && step <= last) || { name: "" }).name;
  drawChart(chart, { title: panel.title, unit: panel.unit, kind: panel.kind, lines, steps: stepRange(), stages, stageAt,
    heightOf: (width) => (width > 520 ? 210 : 170), isLog, hasErrorBars: true, nothing: panel.isAlways });
};

// Only what can be seen is drawn; the rest is drawn when it comes into view.
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const chart = pointer.charts.find((other) => other.figure === entry.target);
    if (chart) chart.isSeen = entry.isIntersecting;
  }
  drawStale();
}, { rootMargin: "200px" });
// A few milliseconds of drawing a frame, so that many long runs do not hold up a scroll or a slider.
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

let builtMetrics = null;
const buildCharts = () => {
  watcher.disconnect();
  const added = state.more.map((metric) => {
    const isEval = metric.startsWith("eval/");
    return { name: "more-" + metric, title: metric, isAdded: true, metric, metrics: [metric], isEval,
      kind: isEval ? "points" : undefined, isAlways: "No chosen run has recorded this." };
  });
  pointer.charts = [...PANELS, ...added].map((table) => figureOf(panelOf(table)));
  byId("charts").replaceChildren(...pointer.charts.map((chart) => chart.figure));
  for (const chart of pointer.charts) watcher.observe(chart.figure);
  builtMetrics = state.more.join();
};
export const showCharts = () => {
  const { charts } = pointer;
  if (state.view !== "overview") { for (const chart of charts) chart.isStale = true; return; }
  if (builtMetrics !== state.more.join()) buildCharts();
  for (const chart of pointer.charts) {
    chart.isStale = true;
    // A chart without lines is hidden, and what is hidden is never seen.
    const isHidden = linesOf(chart.panel).length === 0 && !chart.panel.isAlways;
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
  if (!isKnown) { picker.setCustomValidity(name ? "No such metric: choose one of the list." : ""); return; }
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
