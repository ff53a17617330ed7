// The page of a report or a sweep: texts, charts, dots, pills.
import { drawChart, makeChart, pointer } from "./charts.js";
import { longestJoin } from "./curves.js";
import { byId, colourOf, NUM_COLOURS, readData } from "./dom.js";
import { drawDots } from "./dots.js";
import { showPills } from "./pills.js";
import { followTheme } from "./theme.js";

const data = readData();

const showText = (slot) => {
  if (slot.textContent === "") slot.textContent = data.texts[Number(slot.dataset.text)];
};
for (const slot of document.querySelectorAll("pre[data-text]")) {
  const fold = slot.closest("details");
  if (fold === null) showText(slot);
  else fold.addEventListener("toggle", () => showText(slot));
}
// Everything is open on paper.
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
});
followTheme(byId("theme"));

// One run: a colour for each line. Several runs: a colour for each run, and dashes for its lines.
const linesOf = (chart) => {
  const names = [...new Set(chart.lines.map((line) => line.name))];
  const isOverlay = new Set(chart.lines.map((line) => line.run)).size > 1;
  return chart.lines.map((line) => {
    const number = names.indexOf(line.name);
    const words = [isOverlay ? data.runs[line.run].label : "", !isOverlay || names.length > 1 ? line.name : ""];
    const place = line.colour ?? String((isOverlay ? line.run : number) % NUM_COLOURS);
    return { ...line, name: words.filter(Boolean).join(" · "), colour: colourOf(place),
      dash: isOverlay && line.colour === undefined ? number : 0, shown: line.smooth || line.y,
      longest: longestJoin(line.x) };
  });
};

// All charts share one step axis, so that they can be compared.
const bounds = data.runs.flatMap((run) => run.stages.flatMap(([, first, last]) => [first - 1, last]));
const stepsOf = (chart) => {
  const all = chart.lines.flatMap((line) => [line.x[0], line.x.at(-1)]).concat(bounds);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  return high > low ? [low, high] : [low - 1, high + 1];
};

// Stages are named if all runs have the same ones.
const areShared = new Set(data.runs.map((run) => JSON.stringify(run.stages))).size === 1;
const spans = (areShared ? data.runs.slice(0, 1) : data.runs).flatMap((run) => run.stages);
const stages = spans.map(([name, first, last]) => ({ name: areShared && spans.length > 1 ? name : "", first, last }));
const stageAt = (step) => (stages.find(({ first, last }) => step >= first && step <= last) || { name: "" }).name;

const charts = [...document.querySelectorAll("figure[data-chart]")].map((figure) => {
  const { section, chart: name } = figure.dataset;
  const table = data.sections[section].charts.find((other) => other.name === name);
  const chart = makeChart(section + "-" + name);
  figure.querySelector(".drawing").replaceChildren(chart.plot, chart.readout);
  figure.querySelector("figcaption b").after(chart.step);
  const view = { title: table.title, unit: table.unit, kind: table.kind, lines: linesOf(table), steps: stepsOf(table),
    stages, stageAt, heightOf: (width) => (width < 420 ? 190 : 220), isLog: Boolean(table.is_log), hasFoot: true };
  return { chart, view };
});
pointer.charts = charts.map(({ chart }) => chart);
const drawAll = () => { for (const { chart, view } of charts) drawChart(chart, view); };
drawAll();
let drawnWidth = document.body.clientWidth;
addEventListener("resize", () => {
  if (document.body.clientWidth === drawnWidth) return;
  drawnWidth = document.body.clientWidth;
  drawAll();
});

const dots = document.querySelector("[data-dots]");
if (dots) drawDots(dots, data.sections[dots.dataset.dots].dots);
if (data.sections.pills) showPills(data.sections.pills, data.texts);
