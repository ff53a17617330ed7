// A chart as SVG, for every page: axes, lines with bands or marks, stacks, stages, and values under the pointer.
//
// `makeChart` makes the elements once, and `drawChart` draws new shapes into them, so that nothing flickers and focus
// stays. A page places `plot`, `readout` and `step`, and passes a view:
//   title, unit, kind      "line", "points" (values with marks: evaluations are few) or "stack"
//   lines                  {name, colour, dash, x, y, shown, low, high, longest}; `shown` is y or a smooth line of it
//   steps                  [first, last] of the axis
//   stages, stageAt        marks {name, first, last}, and a function from a step to the name of its stage
//   heightOf               the height for a width, in pixels
//   isLog, hasFoot         logarithmic axis; whether values of 0 and below are drawn at its bottom or left out
//   hasErrorBars           whether points have error bars besides the band
//   nothing                text shown without lines
import { lastKnown, nearestIndex, pieces, stacked, thinned } from "./curves.js";
import { draw, make, paint, setText } from "./dom.js";
import { interval, isNumber, plain, sayTick, sayValue } from "./numbers.js";
import { ticks, valueRange, valueTicks } from "./scales.js";
import { visible } from "./visible.js";

const FRAME = { left: 46, right: 8, top: 16, bottom: 22 };
const MAX_ERROR_BARS = 80;

export const makeChart = (name) => {
  const plot = make("div", "plot");
  const image = draw("svg", { role: "img", tabindex: "0" });
  const clip = draw("clipPath", { id: "clip-" + name.replace(/[^a-z0-9_]/gi, "-") });
  const clipRect = draw("rect", {});
  const body = draw("g", {});
  // Outside the image: moving it must not repaint the curves.
  const cursor = make("div", "cursor");
  cursor.hidden = true;
  clip.append(clipRect);
  image.append(clip, body);
  plot.append(image, cursor);
  const chart = { plot, image, clip, clipRect, body, cursor, readout: make("p", "readout"), step: make("span", "step"),
    view: null, lines: [], isSeen: true };
  listenTo(chart);
  return chart;
};

export const drawChart = (chart, view) => {
  const { image, body, clip, clipRect, plot } = chart;
  const isStack = view.kind === "stack";
  const lines = isStack ? stacked(view.lines) : view.lines;
  const width = Math.max(260, plot.clientWidth || 360);
  const height = view.heightOf(width);
  const inner = width - FRAME.left - FRAME.right;
  const [lowX, highX] = view.steps;
  const range = valueRange(lines, { isStack, isLog: view.isLog, unit: view.unit }) || [0, 1];
  const level = view.isLog ? (y) => Math.log10(Math.max(y, range[0])) : (y) => y;
  const [lowY, highY] = range.map(level);
  const toX = (x) => FRAME.left + ((x - lowX) / (highX - lowX)) * inner;
  const toY = (y) => height - FRAME.bottom - ((level(y) - lowY) / (highY - lowY)) * (height - FRAME.top - FRAME.bottom);
  image.setAttribute("viewBox", `0 0 ${width} ${height}`);
  image.setAttribute("aria-label", describe(view));
  for (const [name, value] of Object.entries({ x: FRAME.left - 2, y: FRAME.top - 4, width: inner + 6,
    height: height - FRAME.top - FRAME.bottom + 6 })) clipRect.setAttribute(name, value);

  Object.assign(chart, { view, lines, toX, toY, width, height, inner, lowX, highX, range });
  const curves = draw("g", { "clip-path": `url(#${clip.id})` });
  for (const line of lines) curves.append(...(isStack ? stackShapes(line, chart) : lineShapes(line, chart)));
  body.replaceChildren(...axisShapes(chart), ...stageShapes(chart), curves);
  showStep(chart);
};

const axisShapes = ({ view, toX, toY, width, height, lowX, highX, range }) => {
  const found = [];
  for (const tick of valueTicks(range, view.isLog)) {
    const y = toY(tick);
    found.push(draw("line", { class: "grid", x1: FRAME.left, x2: width - FRAME.right, y1: y, y2: y }));
    found.push(draw("text", { x: FRAME.left - 6, y: y + 4, "text-anchor": "end" }, sayTick(tick, view.unit)));
  }
  for (const tick of ticks(lowX, highX, width < 420 ? 4 : 7).filter(Number.isInteger)) {
    const anchor = toX(tick) > width - 22 ? "end" : "middle";
    found.push(draw("text", { x: Math.min(toX(tick), width), y: height - 5, "text-anchor": anchor }, plain(tick)));
  }
  found.push(draw("text", { x: FRAME.left - 10, y: height - 5, "text-anchor": "end" }, "step"));
  return found;
};

const stageShapes = ({ view, toX, height, lowX, highX }) => {
  const found = [];
  for (const { name, first, last } of view.stages) {
    const start = Math.max(lowX, first - 0.5);
    if (start > highX || last < lowX) continue;
    if (first > 1 && start > lowX) {
      const x = toX(start);
      found.push(draw("line", { class: "stage-line", x1: x, x2: x, y1: 3, y2: height - FRAME.bottom }));
    }
    if (name && toX(Math.min(last, highX)) - toX(start) > 7 * name.length + 6) {
      found.push(draw("text", { x: toX(start) + 4, y: 10 }, visible(name)));
    }
  }
  return found;
};

const lineShapes = (line, { view, toX, toY, inner, lowX, highX }) => {
  const found = [];
  const isPoints = view.kind === "points";
  const longest = isPoints ? Infinity : line.longest;
  const point = (x, y) => toX(x).toFixed(1) + " " + toY(y).toFixed(1);
  const path = (values) => {
    const drawn = view.isLog && !view.hasFoot ? values.map((value) => (value > 0 ? value : null)) : values;
    return pieces(line.x, drawn, longest).map((piece) => {
      const kept = thinned(piece, line.x, drawn, { numColumns: inner / 2, low: lowX, high: highX });
      return "M" + kept.map((index) => point(line.x[index], drawn[index])).join("L");
    }).join("");
  };
  const hasBand = (index) => isNumber(line.low[index]) && isNumber(line.high[index]);
  if (line.low) {
    const known = line.y.map((value, index) => (hasBand(index) ? value : null));
    for (const piece of pieces(line.x, known, longest)) {
      found.push(draw("path", { class: "band", d: outline(piece, line.x, line.high, line.low, point) }));
    }
  }
  if (line.shown !== line.y) found.push(draw("path", { class: "raw", d: path(line.y) }));
  found.push(draw("path", { class: `curve dash-${line.dash % 4}`, d: path(line.shown), "data-points": line.x.length }));
  if (isPoints || line.x.length === 1) {
    line.x.forEach((x, index) => {
      if (!isNumber(line.y[index])) return;
      if (view.hasErrorBars && line.low && hasBand(index) && line.x.length < MAX_ERROR_BARS) {
        const [low, high] = [point(x, line.low[index]), point(x, line.high[index])];
        found.push(draw("path", { class: "error-bar", d: `M${low}L${high}` }));
      }
      found.push(draw("circle", { class: "mark", cx: toX(x), cy: toY(line.y[index]), r: 2.8 }));
    });
  }
  return found.map((shape) => paint(shape, line.colour));
};

const stackShapes = (line, { toX, toY, inner, lowX, highX }) => {
  const point = (x, y) => toX(x).toFixed(1) + " " + toY(y).toFixed(1);
  const kept = thinned([...line.x.keys()], line.x, line.top, { numColumns: inner / 2, low: lowX, high: highX });
  if (!kept.length) return [];
  const d = outline(kept, line.x, line.top, line.base, point);
  return [paint(draw("path", { class: "area", d, "data-points": line.x.length }), line.colour)];
};

// The outline along the upper values and back along the lower ones.
const outline = (indices, steps, upper, lower, point) => {
  const there = indices.map((index) => point(steps[index], upper[index]));
  const back = indices.map((index) => point(steps[index], lower[index])).reverse();
  return "M" + there.concat(back).join("L") + "Z";
};

const describe = (view) => {
  const parts = view.lines.map((line) => {
    const known = line.shown.filter(isNumber);
    const name = line.name ? line.name + " " : "";
    if (!known.length) return `${name}no value yet`;
    return `${name}from ${sayValue(known[0], view.unit)} to ${sayValue(known.at(-1), view.unit)}`;
  });
  return visible(`${view.title}, over steps: ${parts.join("; ") || "no values yet"}. Arrow keys read values.`);
};

// The step under the pointer, shared by all charts of a page.
export const pointer = { charts: [], step: null, isWaiting: false };

const pointAt = (step) => {
  pointer.step = step;
  if (pointer.isWaiting) return;
  pointer.isWaiting = true;
  requestAnimationFrame(() => {
    pointer.isWaiting = false;
    for (const chart of pointer.charts) if (chart.isSeen) showStep(chart);
  });
};

const showStep = (chart) => {
  const { view, cursor, readout, lines, lowX, highX } = chart;
  if (!view) return;
  const { step } = pointer;
  cursor.hidden = step === null || step < lowX || step > highX;
  const stage = step === null ? "" : view.stageAt(step);
  setText(chart.step, step === null ? "" : "step " + plain(step) + (stage ? ", " + visible(stage) : ""));
  if (!cursor.hidden) {
    const scale = (chart.image.clientWidth || chart.width) / chart.width;
    cursor.style.transform = `translateX(${(chart.toX(step) * scale).toFixed(1)}px)`;
  }
  // Always the same number of entries, so that nothing moves under the pointer.
  readout.replaceChildren(...lines.map((line) => keyOf(line, sayAt(chart, line, step))));
  if (!lines.length) readout.textContent = view.nothing || "";
};

const keyOf = (line, value) => {
  const key = paint(make("span", "key"), line.colour);
  const mark = draw("svg", { viewBox: "0 0 18 10", "aria-hidden": "true" });
  mark.append(draw("line", { x1: 0, x2: 18, y1: 5, y2: 5, class: `dash-${line.dash % 4}` }));
  key.append(mark, make("span", "", visible(line.name)), make("b", "", value));
  return key;
};

// The value of a line at a step; its last value if no step is pointed at.
const sayAt = ({ view, lowX, highX }, line, step) => {
  const index = step === null ? lastKnown(line.y) : nearestIndex(line.x, step);
  if (index < 0) return "–";
  const isPoints = view.kind === "points";
  const spacing = (line.x.at(-1) - line.x[0]) / line.x.length;
  const slack = isPoints ? Infinity : Math.max(1, (highX - lowX) / 100, 1.5 * spacing);
  if (step !== null && Math.abs(line.x[index] - step) > slack) return "–";
  let text = sayValue(line.y[index], view.unit);
  if (line.low && isNumber(line.low[index])) text += ` (${interval(line.low[index], line.high[index], view.unit)})`;
  // Evaluations are far apart, so the value comes with its own step.
  const isElsewhere = isPoints && step !== null && line.x[index] !== step;
  return isElsewhere ? `${text} at step ${plain(line.x[index])}` : text;
};

const listenTo = (chart) => {
  const { image, step, readout } = chart;
  const inside = (wanted) => Math.max(Math.ceil(chart.lowX), Math.min(Math.floor(chart.highX), wanted));
  image.addEventListener("pointermove", (event) => {
    const box = image.getBoundingClientRect();
    const share = ((event.clientX - box.left) * (chart.width / box.width) - FRAME.left) / chart.inner;
    pointAt(inside(Math.round(chart.lowX + share * (chart.highX - chart.lowX))));
  });
  image.addEventListener("pointerleave", () => pointAt(null));
  image.addEventListener("blur", () => {
    for (const part of [step, readout]) part.removeAttribute("aria-live");
    pointAt(null);
  });
  image.addEventListener("keydown", (event) => {
    const jump = Math.max(1, Math.round((chart.highX - chart.lowX) / 50));
    const here = pointer.step ?? chart.highX;
    const moves = { ArrowLeft: here - jump, ArrowRight: here + jump, Home: chart.lowX, End: chart.highX };
    if (!(event.key in moves)) return;
    event.preventDefault();
    for (const part of [step, readout]) part.setAttribute("aria-live", "polite");
    pointAt(inside(moves[event.key]));
  });
};
