// Lines as numbers: positions of steps, running means, gaps, thinning, stacks. Pure functions. Steps are ascending.
import { isNumber } from "./numbers.js";
import { quantile } from "./scales.js";

// The last index whose step is not after `step`; -1 if there is none.
export const indexAt = (steps, step) => {
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle + 1; else high = middle;
  }
  return low - 1;
};

export const nearestIndex = (steps, step) => {
  const before = indexAt(steps, step);
  if (before < 0) return steps.length ? 0 : -1;
  return before + 1 < steps.length && steps[before + 1] - step < step - steps[before] ? before + 1 : before;
};

export const lastKnown = (values) => {
  let index = values.length - 1;
  while (index >= 0 && !isNumber(values[index])) index -= 1;
  return index;
};

// An exponential moving average: it only looks back, so a new step does not move earlier points.
export const smoothed = (values, weight) => {
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

// The same for a log axis, where one large value would dominate the mean for a hundred steps.
export const smoothedLogs = (values, weight) => {
  if (!weight) return values;
  const logs = values.map((value) => (value > 0 ? Math.log(value) : null));
  return smoothed(logs, weight).map((value) => (value === null ? null : Math.exp(value)));
};

// The largest distance at which neighbours are joined: a stage without the metric leaves a gap.
export const longestJoin = (steps) => {
  const distances = steps.slice(1).map((step, index) => step - steps[index]).sort((a, b) => a - b);
  return distances.length ? 5 * quantile(distances, 0.5) : Infinity;
};

// The indices of known values, in pieces: unknown values and large distances break a line.
export const pieces = (steps, values, longest = Infinity) => {
  const found = [];
  let piece = null;
  for (let index = 0; index < steps.length; index += 1) {
    if (!isNumber(values[index]) || (piece && steps[index] - steps[index - 1] > longest)) piece = null;
    if (!isNumber(values[index])) continue;
    if (!piece) found.push(piece = []);
    piece.push(index);
  }
  return found;
};

// The first, least, largest and last value of each column of pixels, in order: a few points per column, so that drawing
// time does not grow with the number of steps.
export const thinned = (piece, steps, values, { numColumns, low, high }) => {
  const width = (high - low) / Math.max(1, numColumns) || 1;
  const kept = [];
  let column = NaN;
  let [first, least, largest, last] = [-1, -1, -1, -1];
  const flush = () => {
    if (first >= 0) kept.push(...new Set([first, Math.min(least, largest), Math.max(least, largest), last]));
  };
  for (const index of piece) {
    const here = Math.floor((steps[index] - low) / width);
    if (here !== column) {
      flush();
      column = here;
      first = least = largest = index;
    }
    if (values[index] < values[least]) least = index;
    if (values[index] > values[largest]) largest = index;
    last = index;
  }
  flush();
  return kept;
};

// Lines on top of each other: each gets its lower and upper edge.
export const stacked = (lines) => {
  const sums = lines.length ? lines[0].x.map(() => 0) : [];
  return lines.map((line) => {
    const base = sums.slice();
    line.y.forEach((value, index) => { sums[index] += value || 0; });
    return { ...line, base, top: sums.slice() };
  });
};
