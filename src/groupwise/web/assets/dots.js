// All final scores of a sweep in one figure: a dot for each arm, a line for its interval, small dots for its seeds.
// Positions are percentages, so that it fits any width.
import { colourOf, draw, make, paint } from "./dom.js";
import { sayTick } from "./numbers.js";
import { ticks, valueRange } from "./scales.js";
import { visible } from "./visible.js";

const NUM_TICKS = 5;

// `groups`: {title, rows}, where a row is {label, colour, value, low, high, seeds, words}; `words` are the value and
// its interval as in the tables of the page.
export const drawDots = (place, groups) => {
  const rows = groups.flatMap((group) => group.rows);
  const ends = rows.flatMap((row) => [row.low, row.high, ...row.seeds]);
  const [low, high] = valueRange([{ y: ends, shown: ends }], { unit: "share" });
  const axis = { at: (share) => `${((100 * (share - low)) / (high - low)).toFixed(2)}%`,
    ticks: ticks(low, high, NUM_TICKS) };
  for (const group of groups) {
    place.append(make("h4", "", visible(group.title)), ...group.rows.map((row) => dotRow(row, axis)));
  }
  place.append(labelRow(axis));
};

const stripOf = (shapes) => {
  const strip = draw("svg", { class: "dot-strip", "aria-hidden": "true" });
  strip.append(...shapes);
  return strip;
};

const dotRow = (row, { at, ticks: marks }) => {
  const strip = stripOf(marks.map((tick) => draw("line", { class: "grid", x1: at(tick), x2: at(tick), y1: 0,
    y2: "100%" })));
  strip.append(draw("line", { class: "whisker", x1: at(row.low), x2: at(row.high), y1: "50%", y2: "50%" }));
  const seeds = row.seeds.length > 1 ? row.seeds : [];
  strip.append(...seeds.map((seed) => draw("circle", { class: "mark dot-seed", cx: at(seed), cy: "50%", r: 2.5 })));
  strip.append(draw("circle", { class: "mark", cx: at(row.value), cy: "50%", r: 4.5 }));
  const value = make("span", "dot-value");
  value.append(make("b", "", row.words[0]), " ", make("span", "", `(${row.words[1]})`));
  const element = make("div", "dot-row");
  element.append(make("span", "dot-label", visible(row.label)), paint(strip, colourOf(row.colour)), value);
  return element;
};

const labelRow = ({ at, ticks: marks }) => {
  const labels = marks.map((tick) => draw("text", { x: at(tick), y: 13, "text-anchor": "middle" },
    sayTick(tick, "share")));
  const element = make("div", "dot-row");
  element.append(make("span"), stripOf(labels), make("span"));
  return element;
};
