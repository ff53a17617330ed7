"""The part of a report's script that draws charts as SVG; see `page_script`."""

from __future__ import annotations

# Ticks and quantiles, with nothing of a report in it: other pages of ours use it as it is.
AXES = r"""
  const ticks = (low, high, wanted) => {
    const rough = (high - low) / wanted;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough * 0.999);
    const found = [];
    for (let tick = Math.ceil(low / step - 1e-9); tick * step <= high + step * 1e-9; tick += 1) {
      found.push(Number((tick * step).toPrecision(12)));
    }
    return found;
  };
  const logTicks = (low, high) => {
    const found = [];
    const factors = high / low > 1000 ? [1] : [1, 2, 5];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      found.push(...factors.map((factor) => factor * 10 ** power));
    }
    const inside = found.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
    const step = Math.ceil(inside.length / 6);
    return inside.filter((tick, index) => index % step === 0);
  };
  const quantile = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
"""

CHARTS = (
    AXES
    + r"""
  // What the eye should see: the curve whole, single outliers of the thin line cut.
  const valueRange = (chart, layers) => {
    const shown = [];
    for (const line of chart.kind === "stack" ? layers : chart.lines) {
      shown.push(...(line.smooth || line.top || line.y), ...(line.low || []), ...(line.high || []));
      if (line.smooth) {
        const raw = line.y.filter(isNumber).sort((a, b) => a - b);
        if (raw.length) shown.push(quantile(raw, 0.02), quantile(raw, 0.98));
      }
    }
    const known = shown.filter((value) => isNumber(value) && (!chart.is_log || value > 0));
    let low = known.reduce((a, b) => Math.min(a, b), Infinity);
    let high = known.reduce((a, b) => Math.max(a, b), -Infinity);
    // Six decades leave room for the upper ones; more where values exploded, and most of them are further down.
    if (chart.is_log && high > 0) {
      const usual = quantile(known.sort((a, b) => a - b), 0.5);
      return [Math.max(low, Math.min(high / 1e6, usual / 1e3)) / 1.15, high * 1.15];
    }
    if (chart.kind === "stack" || (low >= 0 && low < 0.6 * high)) low = 0;
    // Rounding is no signal: a loss of 1e-9 is shown as a line at 0.
    if (Math.max(Math.abs(low), Math.abs(high)) < 1e-6) return chart.unit === "share" ? [0, 0.1] : [-0.01, 0.01];
    if (high - low < 1e-12) [low, high] = [low - Math.abs(low) * 0.5, high + Math.abs(high) * 0.5];
    const room = 0.06 * (high - low);
    const top = chart.unit === "share" ? Math.min(1.005, high + room) : high + room;
    return [low === 0 ? 0 : low - room, top];
  };

  // Runs of known values that belong together: a stage that did not measure something leaves a gap.
  const pieces = (line, values, joinsGaps) => {
    const steps = line.x.slice(1).map((x, index) => x - line.x[index]).sort((a, b) => a - b);
    const longest = joinsGaps || steps.length === 0 ? Infinity : 5 * quantile(steps, 0.5);
    const found = [];
    let piece = [];
    line.x.forEach((x, index) => {
      const isApart = piece.length > 0 && x - line.x[index - 1] > longest;
      if (!isNumber(values[index]) || isApart) {
        if (piece.length) found.push(piece);
        piece = [];
      }
      if (isNumber(values[index])) piece.push([x, values[index], index]);
    });
    if (piece.length) found.push(piece);
    return found;
  };

  const stackLayers = (lines) => {
    const sums = lines.length ? lines[0].x.map(() => 0) : [];
    return lines.map((line) => {
      const base = sums.slice();
      line.y.forEach((value, index) => { sums[index] += value || 0; });
      return { base, top: sums.slice() };
    });
  };

  // All charts have one step axis, so that what happens at a step stands in one place.
  const bounds = data.runs.flatMap((run) => run.stages.flatMap(([, first, last]) => [first - 1, last]));
  const stepRange = (chart) => {
    const all = chart.lines.flatMap((line) => [line.x[0], line.x.at(-1)]).concat(bounds);
    const [low, high] = [Math.min(...all), Math.max(...all)];
    return high > low ? [low, high] : [low - 1, high + 1];
  };

  const stageMarks = () => {
    const all = data.runs.map((run) => JSON.stringify(run.stages));
    const isShared = new Set(all).size === 1;
    const runs = isShared ? data.runs.slice(0, 1) : data.runs;
    return { isShared, marks: runs.flatMap((run) => run.stages.map(([name, first, last]) => ({ name, first, last }))) };
  };
  const stageAt = (run, x) => {
    const stage = (data.runs[run] || { stages: [] }).stages.find(([, first, last]) => x >= first && x <= last);
    return stage ? stage[0] : "";
  };

  const lineNames = (chart) => [...new Set(chart.lines.map((line) => line.name))];
  // One run: a colour for each line. Several: a colour for each run, and dashes tell the lines apart.
  const look = (chart, line) => {
    if (line.colour !== undefined) return { colour: line.colour, dash: 0, isOverlay: false };
    const number = lineNames(chart).indexOf(line.name);
    const isOverlay = new Set(chart.lines.map((other) => other.run)).size > 1;
    return { colour: (isOverlay ? line.run : number) % NUM_COLOURS, dash: isOverlay ? number % 4 : 0, isOverlay };
  };

  const keyOf = (chart, line, value) => {
    const { colour, dash, isOverlay } = look(chart, line);
    const key = make("span", "key");
    const sample = draw("svg", { viewBox: "0 0 18 10", "aria-hidden": "true" });
    sample.append(draw("line", { x1: 0, x2: 18, y1: 5, y2: 5, "stroke-width": 3,
      class: `stroke-${colour} dash-${dash}` }));
    const names = lineNames(chart);
    const words = [isOverlay ? data.runs[line.run].label : "", !isOverlay || names.length > 1 ? line.name : ""];
    key.append(sample, make("span", "", words.filter(Boolean).join(" · ")), make("b", "", value));
    return key;
  };

  const valueAt = (chart, line, x) => {
    let nearest = -1;
    line.x.forEach((other, index) => {
      if (nearest < 0 || Math.abs(other - x) < Math.abs(line.x[nearest] - x)) nearest = index;
    });
    const slack = chart.kind === "points" ? Infinity : 1.5 * ((line.x.at(-1) - line.x[0]) / line.x.length || 1);
    if (nearest < 0 || Math.abs(line.x[nearest] - x) > Math.max(1, slack)) return null;
    let text = format(line.y[nearest], chart.unit);
    if (line.low) text += ` (${short(line.low[nearest], chart.unit)} to ${short(line.high[nearest], chart.unit)})`;
    return { text, index: nearest };
  };

  const drawChart = (figure, chart) => {
    const plot = figure.querySelector(".plot");
    const width = Math.max(280, plot.clientWidth || 520);
    const height = width < 420 ? 190 : 220;
    const frame = { left: 46, right: 10, top: 18, bottom: 24 };
    const layers = chart.kind === "stack" ? stackLayers(chart.lines) : [];
    const allX = [...new Set(chart.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const [lowX, highX] = stepRange(chart);
    const [lowY, highY] = valueRange(chart, layers);
    const toX = (x) => frame.left + ((x - lowX) / (highX - lowX)) * (width - frame.left - frame.right);
    const scaled = chart.is_log ? (y) => Math.log10(Math.max(y, lowY)) : (y) => y;
    const [bottomY, topY] = [scaled(lowY), scaled(highY)];
    const toY = (y) => height - frame.bottom
      - ((scaled(y) - bottomY) / (topY - bottomY)) * (height - frame.top - frame.bottom);
    const point = (x, y) => toX(x).toFixed(1) + " " + toY(y).toFixed(1);

    const image = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0" });
    image.setAttribute("aria-label", describe(chart));
    const clip = "clip-" + figure.dataset.section + "-" + chart.name;
    const clipPath = draw("clipPath", { id: clip });
    clipPath.append(draw("rect", { x: frame.left - 3, y: frame.top - 4, width: width - frame.left - frame.right + 8,
      height: height - frame.top - frame.bottom + 8 }));
    image.append(clipPath);
    for (const tick of chart.is_log ? logTicks(lowY, highY) : ticks(lowY, highY, 4)) {
      const y = toY(tick);
      image.append(draw("line", { class: "grid", x1: frame.left, x2: width - frame.right, y1: y, y2: y }));
      image.append(draw("text", { x: frame.left - 7, y: y + 4, "text-anchor": "end" }, short(tick, chart.unit)));
    }
    for (const tick of ticks(lowX, highX, width < 420 ? 4 : 6).filter(Number.isInteger)) {
      image.append(draw("text", { x: toX(tick), y: height - 6, "text-anchor": "middle" }, plain(tick)));
    }
    drawStages(image, toX, { lowX, highX, height, frame });
    const body = draw("g", { "clip-path": `url(#${clip})` });
    if (chart.kind === "stack") drawStack(body, chart, layers, point);
    else for (const line of chart.lines) drawLine(body, chart, line, point);
    const cursor = draw("line", { class: "cursor", y1: frame.top, y2: height - frame.bottom, visibility: "hidden" });
    image.append(body, cursor);

    const readout = make("p", "readout");
    const rest = () => {
      cursor.setAttribute("visibility", "hidden");
      readout.replaceChildren(...chart.lines.map((line) => keyOf(chart, line, "")));
    };
    let at = -1;
    const show = (index) => {
      at = Math.max(0, Math.min(allX.length - 1, index));
      const x = allX[at];
      cursor.setAttribute("x1", toX(x));
      cursor.setAttribute("x2", toX(x));
      cursor.setAttribute("visibility", "visible");
      const keys = chart.lines.map((line) => [line, valueAt(chart, line, x)]).filter(([, value]) => value !== null);
      const stage = data.runs.length === 1 && data.runs[0].stages.length > 1 ? stageAt(0, x) : "";
      const step = make("span", "", "step ");
      step.append(make("b", "", plain(x)), stage ? ", " + stage : "");
      readout.replaceChildren(step, ...keys.map(([line, value]) => keyOf(chart, line, value.text)));
    };
    image.addEventListener("pointermove", (event) => {
      const box = image.getBoundingClientRect();
      const x = lowX + (((event.clientX - box.left) * (width / box.width) - frame.left)
        / (width - frame.left - frame.right)) * (highX - lowX);
      let nearest = 0;
      allX.forEach((other, index) => { if (Math.abs(other - x) < Math.abs(allX[nearest] - x)) nearest = index; });
      show(nearest);
    });
    image.addEventListener("pointerleave", rest);
    image.addEventListener("blur", () => { readout.removeAttribute("aria-live"); rest(); });
    image.addEventListener("keydown", (event) => {
      const jump = Math.max(1, Math.round(allX.length / 50));
      const moves = { ArrowLeft: at - jump, ArrowRight: at + jump, Home: 0, End: allX.length - 1 };
      if (!(event.key in moves)) return;
      event.preventDefault();
      readout.setAttribute("aria-live", "polite");
      show(moves[event.key]);
    });
    plot.replaceChildren(image, readout);
    // Many lines have long figures: with their room kept, the page does not jump under the pointer.
    if (chart.lines.length > 3) {
      show(allX.length - 1);
      readout.style.minHeight = readout.offsetHeight + "px";
      at = -1;
    }
    rest();
  };

  const describe = (chart) => {
    const parts = chart.lines.map((line) => {
      const known = (line.smooth || line.y).filter(isNumber);
      const name = data.runs.length > 1 ? data.runs[line.run].label + " " + line.name : line.name;
      return `${name} from ${format(known[0], chart.unit)} to ${format(known.at(-1), chart.unit)}`;
    });
    return `${chart.title}, over steps: ${parts.join("; ")}. Arrow keys read values.`;
  };

  const drawStages = (image, toX, { lowX, highX, height, frame }) => {
    const { isShared, marks } = stageMarks();
    for (const { name, first, last } of marks) {
      const start = Math.max(lowX, first - 0.5);
      if (start > highX || last < lowX) continue;
      if (first > 1 && start > lowX) {
        image.append(draw("line", { class: "stage-line", x1: toX(start), x2: toX(start), y1: 4,
          y2: height - frame.bottom }));
      }
      const room = toX(Math.min(last, highX)) - toX(start);
      if (isShared && marks.length > 1 && room > 7 * name.length + 6) {
        image.append(draw("text", { x: toX(start) + 5, y: 12 }, name));
      }
    }
  };

  const drawLine = (body, chart, line, point) => {
    const { colour, dash } = look(chart, line);
    const joins = chart.kind === "points";
    const path = (values) => pieces(line, values, joins)
      .map((piece) => "M" + piece.map(([x, y]) => point(x, y)).join("L")).join("");
    if (line.low) {
      for (const piece of pieces(line, line.y, joins)) {
        const upper = piece.map(([x, , index]) => point(x, line.high[index]));
        const lower = piece.map(([x, , index]) => point(x, line.low[index])).reverse();
        body.append(draw("path", { class: `band fill-${colour}`, d: "M" + upper.concat(lower).join("L") + "Z" }));
      }
    }
    if (line.smooth) body.append(draw("path", { class: `raw stroke-${colour}`, d: path(line.y) }));
    body.append(draw("path", { class: `curve stroke-${colour} dash-${dash}`, d: path(line.smooth || line.y) }));
    if (joins || line.x.length === 1) {
      line.x.forEach((x, index) => {
        if (!isNumber(line.y[index])) return;
        const [cx, cy] = point(x, line.y[index]).split(" ");
        body.append(draw("circle", { class: `fill-${colour}`, cx, cy, r: 3 }));
      });
    }
  };

  const drawStack = (body, chart, layers, point) => {
    chart.lines.forEach((line, number) => {
      const upper = line.x.map((x, index) => point(x, layers[number].top[index]));
      const lower = line.x.map((x, index) => point(x, layers[number].base[index])).reverse();
      const outline = "M" + upper.concat(lower).join("L") + "Z";
      body.append(draw("path", { class: `area fill-${number % NUM_COLOURS}`, d: outline }));
    });
  };

  const figures = [...document.querySelectorAll("figure[data-chart]")].map((figure) => {
    const charts = data.sections[figure.dataset.section].charts;
    return [figure, charts.find((chart) => chart.name === figure.dataset.chart)];
  });
  const drawAll = () => figures.forEach(([figure, chart]) => drawChart(figure, chart));
  drawAll();
  let drawnWidth = document.body.clientWidth;
  addEventListener("resize", () => {
    if (document.body.clientWidth === drawnWidth) return;
    drawnWidth = document.body.clientWidth;
    drawAll();
  });
"""
)
