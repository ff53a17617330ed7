"""The part of the dashboard's script that draws one chart as SVG, for any number of runs; see `page`.

A chart keeps its elements and gets new shapes at each redraw, so that nothing flickers and focus stays. What is drawn
is thinned to a few points per column of pixels (first, least, largest, last), so its cost does not grow with the steps.
"""

from __future__ import annotations

CHARTS = r"""
  const NUM_COLOURS = 8;
  const colourOf = (slot) => `var(--s${slot % NUM_COLOURS})`;
  const paint = (element, colour) => { element.style.setProperty("--c", colour); return element; };

  // The last index whose step is not after `step`; -1 where there is none. Steps grow.
  const indexAt = (steps, step) => {
    let low = 0;
    let high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle + 1; else high = middle;
    }
    return low - 1;
  };
  const nearestIndex = (steps, step) => {
    const before = indexAt(steps, step);
    if (before < 0) return steps.length ? 0 : -1;
    return before + 1 < steps.length && steps[before + 1] - step < step - steps[before] ? before + 1 : before;
  };

  // A running mean that forgets: it looks back only, so a curve's past does not move when a step is added.
  const smoothed = (values, weight) => {
    if (!weight) return values;
    let sum = 0;
    let mass = 0;
    return values.map((value) => {
      if (!isNumber(value)) return null;
      sum = weight * sum + (1 - weight) * value;
      mass = weight * mass + (1 - weight);
      return sum / mass;
    });
  };

  // The same for a log axis, on which one large value would stay in the mean for a hundred steps.
  const smoothedLogs = (values, weight) => {
    if (!weight) return values;
    const logs = values.map((value) => (value > 0 ? Math.log(value) : null));
    return smoothed(logs, weight).map((value) => (value === null ? null : Math.exp(value)));
  };
  // Whether the largest value would leave the others no room above 0: it is a thousand times the median.
  const explodes = (lines) => {
    const some = [];
    let largest = 0;
    for (const line of lines) {
      const stride = Math.ceil(line.y.length / 2000);
      line.y.forEach((value, index) => {
        if (!isNumber(value)) return;
        if (value > largest) largest = value;
        if (index % stride === 0) some.push(value);
      });
    }
    const usual = quantile(some.sort((a, b) => a - b), 0.5);
    return usual > 0 && largest > 1000 * usual;
  };

  // Of each column: the first, the least, the largest and the last, in their order. `null` marks a gap.
  const thinned = (xs, ys, numColumns, low, high) => {
    const kept = [];
    const width = (high - low) / Math.max(1, numColumns) || 1;
    const keep = (index) => { kept.push([xs[index], ys[index], index]); };
    let column = NaN;
    let [first, least, largest, last] = [-1, -1, -1, -1];
    const flush = () => {
      if (first < 0) return;
      keep(first);
      const [one, two] = least < largest ? [least, largest] : [largest, least];
      if (one !== first && one !== last) keep(one);
      if (two !== first && two !== last && two !== one) keep(two);
      if (last !== first) keep(last);
      first = -1;
    };
    for (let index = 0; index < xs.length; index += 1) {
      const y = ys[index];
      if (!isNumber(y)) {
        flush();
        if (kept.length && kept.at(-1) !== null) kept.push(null);
        column = NaN;
        continue;
      }
      const here = Math.floor((xs[index] - low) / width);
      if (here !== column) {
        flush();
        column = here;
        first = least = largest = index;
      }
      if (y < ys[least]) least = index;
      if (y > ys[largest]) largest = index;
      last = index;
    }
    flush();
    return kept;
  };

  const pathOf = (points, toX, toY) => {
    let path = "";
    let isOpen = false;
    for (const point of points) {
      if (point === null) { isOpen = false; continue; }
      path += (isOpen ? "L" : "M") + toX(point[0]).toFixed(1) + " " + toY(point[1]).toFixed(1);
      isOpen = true;
    }
    return path;
  };

  const rangeOf = (lines, isStack, isLog, unit) => {
    let low = Infinity;
    let high = -Infinity;
    const see = (value) => {
      if (!isNumber(value) || (isLog && value <= 0)) return;
      if (value < low) low = value;
      if (value > high) high = value;
    };
    for (const line of lines) {
      for (const values of [line.low, line.high, line.top]) if (values) values.forEach(see);
      line.shown.forEach(see);
      // Of the thin line behind a smooth one, single outliers may leave the frame.
      if (line.shown !== line.y) {
        const stride = Math.ceil(line.y.length / 2000);
        const some = Float64Array.from(line.y.filter((value, index) => index % stride === 0 && isNumber(value))).sort();
        if (some.length) [quantile(some, 0.02), quantile(some, 0.98)].forEach(see);
      }
    }
    if (low > high) return null;
    if (isLog) return high / low > 1.001 ? [low / 1.15, high * 1.15] : [low / 2, high * 2];
    if (isStack || (low >= 0 && low < 0.6 * high)) low = 0;
    // Rounding is no signal: a loss of 1e-9 is shown as a line at 0.
    if (Math.max(Math.abs(low), Math.abs(high)) < 1e-6) return unit === "share" ? [0, 0.1] : [-0.01, 0.01];
    if (high - low < 1e-12) [low, high] = [low - Math.abs(low) * 0.5, high + Math.abs(high) * 0.5];
    const room = 0.06 * (high - low);
    return [low === 0 ? 0 : low - room, unit === "share" ? Math.min(1.005, high + room) : high + room];
  };

  // A log axis over less than a decade has too few round powers to be read by.
  const ticksOf = ([low, high], isLog) => {
    const powers = isLog ? logTicks(low, high) : [];
    return powers.length > 1 ? powers : ticks(low, high, 4).filter((tick) => !isLog || tick > 0);
  };

  // One chart. `panel` says what to show; its `lines()` are {name, colour, dash, x, y, low, high} of the chosen runs.
  const chartOf = (panel) => {
    const figure = make("figure", "chart card");
    figure.dataset.panel = panel.name;
    const caption = make("figcaption");
    const unit = make("span", "unit");
    caption.append(make("span", "", visible(panel.title)), unit);
    const plot = make("div", "plot");
    const image = draw("svg", { role: "img", tabindex: "0" });
    const body = draw("g", {});
    // Not in the image: moving it must not paint the curves again.
    const cursor = make("div", "cursor");
    cursor.hidden = true;
    const clip = draw("clipPath", { id: "clip-" + panel.name.replace(/[^a-z0-9_]/gi, "-") });
    const clipRect = draw("rect", {});
    clip.append(clipRect);
    image.append(clip, body);
    const readout = make("p", panel.isEval ? "readout long" : "readout");
    const step = make("span", "step");
    caption.append(step);
    plot.append(image, cursor);
    figure.append(caption, make("p", "why", visible(panel.why)), plot, readout);
    const chart = { panel, figure, image, body, cursor, clip, clipRect, readout, caption, unit, step, isSeen: false,
      isStale: true };
    listenTo(chart);
    return chart;
  };
  const unitWord = (unit) => (unit === "share" || unit === "count" || unit === "bytes" ? "" : unit || "");

  const layers = (lines) => {
    if (!lines.length) return;
    const sums = lines[0].x.map(() => 0);
    for (const line of lines) {
      line.base = sums.slice();
      line.y.forEach((value, index) => { sums[index] += value || 0; });
      line.top = sums.slice();
    }
  };

  const redraw = (chart) => {
    const { panel, image, body, clip, clipRect } = chart;
    chart.isStale = false;
    const lines = panel.lines();
    chart.figure.hidden = lines.length === 0 && !panel.isAlways;
    const width = Math.max(260, image.parentElement.clientWidth || 360);
    const height = width > 520 ? 210 : 170;
    const frame = { left: 46, right: 8, top: 16, bottom: 22 };
    const inner = width - frame.left - frame.right;
    const isStack = panel.kind === "stack";
    const weight = panel.kind ? 0 : Number(state.smooth);
    const isLog = (state.log === "1" || (panel.mayBeLog && explodes(lines))) && !isStack && panel.kind !== "points"
      && lines.some((line) => line.y.some((value) => value > 0));
    for (const line of lines) line.shown = (isLog ? smoothedLogs : smoothed)(line.y, weight);
    chart.unit.textContent = [unitWord(panel.unit), isLog ? "log" : ""].filter(Boolean).join(", ");
    if (isStack) layers(lines);
    const [lowX, highX] = stepRange();
    const range = rangeOf(lines, isStack, isLog, panel.unit) || [0, 1];
    const [lowY, highY] = isLog ? range.map(Math.log10) : range;
    const toX = (x) => frame.left + ((x - lowX) / (highX - lowX)) * inner;
    const toY = (y) => height - frame.bottom
      - (((isLog ? Math.log10(y) : y) - lowY) / (highY - lowY)) * (height - frame.top - frame.bottom);
    image.setAttribute("viewBox", `0 0 ${width} ${height}`);
    image.setAttribute("aria-label", describe(panel, lines));
    for (const [name, value] of Object.entries({ x: frame.left - 2, y: frame.top - 4, width: inner + 6,
      height: height - frame.top - frame.bottom + 6 })) clipRect.setAttribute(name, value);

    const shapes = [];
    for (const tick of ticksOf(range, isLog)) {
      const y = toY(tick);
      shapes.push(draw("line", { class: "grid", x1: frame.left, x2: width - frame.right, y1: y, y2: y }));
      shapes.push(draw("text", { x: frame.left - 6, y: y + 4, "text-anchor": "end" }, sayTick(tick, panel.unit)));
    }
    for (const tick of ticks(lowX, highX, width < 420 ? 4 : 7).filter(Number.isInteger)) {
      const anchor = toX(tick) > width - 22 ? "end" : "middle";
      shapes.push(draw("text", { x: Math.min(toX(tick), width), y: height - 5, "text-anchor": anchor }, plain(tick)));
    }
    shapes.push(...stageShapes(toX, { lowX, highX, height, frame }));
    const curves = draw("g", { "clip-path": `url(#${clip.id})` });
    const view = { panel, toX, toY, lowX, highX, inner, isLog, isStack };
    for (const line of lines) curves.append(...lineShapes(line, view));
    body.replaceChildren(...shapes, curves);
    Object.assign(chart, { lines, toX, width, height, frame, lowX, highX });
    showStep(chart);
  };

  const lineShapes = (line, { panel, toX, toY, lowX, highX, inner, isLog, isStack }) => {
    const found = [];
    const clean = (values) => (isLog ? values.map((value) => (value > 0 ? value : null)) : values);
    const path = (values) => pathOf(thinned(line.x, clean(values), inner / 2, lowX, highX), toX, toY);
    if (isStack) {
      const points = thinned(line.x, line.top, inner / 2, lowX, highX).filter((point) => point !== null);
      const upper = points.map(([x, y]) => toX(x).toFixed(1) + " " + toY(y).toFixed(1));
      const lower = points.map(([x, , index]) => toX(x).toFixed(1) + " " + toY(line.base[index]).toFixed(1)).reverse();
      if (upper.length) found.push(draw("path", { class: "area", d: "M" + upper.concat(lower).join("L") + "Z" }));
    } else {
      if (line.low) {
        const known = line.x.map((x, index) => [x, line.low[index], line.high[index]])
          .filter(([, low, high]) => isNumber(low) && isNumber(high));
        const upper = known.map(([x, , high]) => toX(x).toFixed(1) + " " + toY(high).toFixed(1));
        const lower = known.map(([x, low]) => toX(x).toFixed(1) + " " + toY(low).toFixed(1)).reverse();
        if (upper.length > 1) found.push(draw("path", { class: "band", d: "M" + upper.concat(lower).join("L") + "Z" }));
      }
      if (line.shown !== line.y) found.push(draw("path", { class: "raw", d: path(line.y) }));
      found.push(draw("path", { class: `curve dash-${line.dash % 4}`, d: path(line.shown) }));
      if (panel.kind === "points" || line.x.length === 1) {
        line.x.forEach((x, index) => {
          if (!isNumber(line.y[index])) return;
          if (line.low && line.x.length < 80) {
            found.push(draw("path", { class: "curve", "stroke-opacity": ".4",
              d: pathOf([[x, line.low[index]], [x, line.high[index]]], toX, toY) }));
          }
          found.push(draw("circle", { class: "mark", cx: toX(x), cy: toY(line.y[index]), r: 2.8 }));
        });
      }
    }
    for (const shape of found) paint(shape, line.colour);
    const main = found.find((shape) => shape.classList.contains("curve") || shape.classList.contains("area"));
    if (main) main.dataset.points = line.x.length;
    return found;
  };

  const stageShapes = (toX, { lowX, highX, height, frame }) => {
    const found = [];
    const all = stagesOf(state.run);
    if (all.length < 2) return found;
    for (const { name, first, last } of all) {
      const start = Math.max(lowX, first - 0.5);
      if (start > highX) continue;
      if (first > 1) {
        const x = toX(start);
        found.push(draw("line", { class: "stage-line", x1: x, x2: x, y1: 3, y2: height - frame.bottom }));
      }
      if (toX(Math.min(last, highX)) - toX(start) > 7 * name.length + 6) {
        found.push(draw("text", { x: toX(start) + 4, y: 10 }, visible(name)));
      }
    }
    return found;
  };

  const keyOf = (line, value) => {
    const key = paint(make("span", "key"), line.colour);
    const mark = draw("svg", { viewBox: "0 0 18 10", "aria-hidden": "true" });
    mark.append(draw("line", { x1: 0, x2: 18, y1: 5, y2: 5, class: `dash-${line.dash % 4}` }));
    key.append(mark, make("span", "", visible(line.name)), make("b", "", value));
    return key;
  };
  const sayAt = (panel, line, index) => {
    let text = sayValue(line.y[index], panel.unit);
    if (line.low && isNumber(line.low[index])) {
      text += ` (${interval(line.low[index], line.high[index], panel.unit)})`;
    }
    return text;
  };
  const lastKnown = (values) => {
    let index = values.length - 1;
    while (index >= 0 && !isNumber(values[index])) index -= 1;
    return index;
  };

  // The step under the pointer is one for all charts: what happens at a step stands in one place.
  let pointed = null;
  const showStep = (chart) => {
    const { panel, cursor, readout, lines } = chart;
    if (!lines) return;
    const isInside = pointed !== null && pointed >= chart.lowX && pointed <= chart.highX;
    cursor.hidden = !isInside;
    setText(chart.step, pointed === null ? "" : "step " + plain(pointed));
    if (isInside) {
      const scale = (chart.image.clientWidth || chart.width) / chart.width;
      cursor.style.transform = `translateX(${(chart.toX(pointed) * scale).toFixed(1)}px)`;
    }
    // As many entries as at rest, so that nothing moves under the pointer.
    const slack = panel.kind === "points" ? Infinity : Math.max(1, (chart.highX - chart.lowX) / 100);
    readout.replaceChildren(...lines.map((line) => {
      const index = pointed === null ? lastKnown(line.y) : nearestIndex(line.x, pointed);
      const isNear = index >= 0 && (pointed === null || Math.abs(line.x[index] - pointed) <= slack);
      return keyOf(line, isNear ? sayAt(panel, line, index) : "–");
    }));
    if (!lines.length) readout.textContent = panel.isAlways || "";
  };
  let isWaiting = false;
  const pointAt = (step) => {
    pointed = step;
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => {
      isWaiting = false;
      for (const chart of shownCharts()) if (chart.isSeen) showStep(chart);
    });
  };

  const listenTo = (chart) => {
    const { image, readout } = chart;
    image.addEventListener("pointermove", (event) => {
      const box = image.getBoundingClientRect();
      const place = (event.clientX - box.left) * (chart.width / box.width) - chart.frame.left;
      const share = place / (chart.width - chart.frame.left - chart.frame.right);
      const step = Math.round(chart.lowX + share * (chart.highX - chart.lowX));
      pointAt(Math.max(Math.ceil(chart.lowX), Math.min(Math.floor(chart.highX), step)));
    });
    image.addEventListener("pointerleave", () => pointAt(null));
    image.addEventListener("blur", () => { readout.removeAttribute("aria-live"); pointAt(null); });
    image.addEventListener("keydown", (event) => {
      const jump = Math.max(1, Math.round((chart.highX - chart.lowX) / 50));
      const here = pointed ?? chart.highX;
      const moves = { ArrowLeft: here - jump, ArrowRight: here + jump, Home: chart.lowX, End: chart.highX };
      if (!(event.key in moves)) return;
      event.preventDefault();
      readout.setAttribute("aria-live", "polite");
      pointAt(Math.max(Math.ceil(chart.lowX), Math.min(Math.floor(chart.highX), moves[event.key])));
    });
  };

  const describe = (panel, lines) => {
    const parts = lines.map((line) => {
      const known = line.y.filter(isNumber);
      if (!known.length) return `${line.name}: nothing yet`;
      return `${line.name} from ${sayValue(known[0], panel.unit)} to ${sayValue(known.at(-1), panel.unit)}`;
    });
    return visible(`${panel.title}, over steps: ${parts.join("; ") || "nothing yet"}. Arrow keys read values.`);
  };
"""
