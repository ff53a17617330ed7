// Axes: ticks, quantiles and the range of values of a chart. Pure functions.
import { isNumber } from "./numbers.js";

export const ticks = (low, high, wanted) => {
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough * 0.999);
  const found = [];
  for (let tick = Math.ceil(low / step - 1e-9); tick * step <= high + step * 1e-9; tick += 1) {
    found.push(Number((tick * step).toPrecision(12)));
  }
  return found;
};

export const logTicks = (low, high) => {
  const found = [];
  const factors = high / low > 1000 ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    found.push(...factors.map((factor) => factor * 10 ** power));
  }
  const inside = found.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  const stride = Math.ceil(inside.length / 6);
  return inside.filter((tick, index) => index % stride === 0);
};

// A log axis over less than a decade has too few round powers.
export const valueTicks = ([low, high], isLog) => {
  const powers = isLog ? logTicks(low, high) : [];
  return powers.length > 1 ? powers : ticks(low, high, 4).filter((tick) => !isLog || tick > 0);
};

// A quantile of sorted values.
export const quantile = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];

// The known values of a line, sorted; every n-th value of a long line.
export const sortedSome = (values, most = 2000) => {
  const stride = Math.ceil(values.length / most);
  return Float64Array.from(values.filter((value, index) => index % stride === 0 && isNumber(value))).sort();
};

// Whether the largest value would squeeze the others onto 0: it is over a thousand times the median.
export const explodes = (lines) => {
  const some = [];
  let largest = 0;
  for (const { y } of lines) {
    for (const value of y) if (isNumber(value) && value > largest) largest = value;
    some.push(...sortedSome(y));
  }
  const usual = quantile(Float64Array.from(some).sort(), 0.5);
  return usual > 0 && largest > 1000 * usual;
};

// The values of a line that the axis must show: its own and its band's. Outliers behind a smooth line are cut off.
const shownValues = (line) => {
  const found = [line.shown, line.low, line.high, line.top].filter(Boolean);
  if (line.shown === line.y) return found;
  const some = sortedSome(line.y);
  return some.length ? [...found, [quantile(some, 0.02), quantile(some, 0.98)]] : found;
};

// The ends of the value axis; null if there is nothing to show.
export const valueRange = (lines, { isStack, isLog, unit }) => {
  const shown = lines.flatMap(shownValues);
  let low = Infinity;
  let high = -Infinity;
  for (const values of shown) {
    for (const value of values) {
      if (!isNumber(value) || (isLog && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return null;
  if (isLog) {
    if (high / low < 1.001) return [low / 2, high * 2];
    // Six decades below the top; more if values exploded and most are further down.
    const some = shown.flatMap((values) => [...sortedSome(values)]).filter((value) => value > 0);
    const usual = quantile(some.sort((a, b) => a - b), 0.5) ?? high;
    return [Math.max(low, Math.min(high / 1e6, usual / 1e3)) / 1.15, high * 1.15];
  }
  if (isStack || (low >= 0 && low < 0.6 * high)) low = 0;
  // A loss of 1e-9 is rounding: shown as a line at 0.
  if (Math.max(Math.abs(low), Math.abs(high)) < 1e-6) return unit === "share" ? [0, 0.1] : [-0.01, 0.01];
  if (high - low < 1e-12) [low, high] = [low - Math.abs(low) * 0.5, high + Math.abs(high) * 0.5];
  const room = 0.06 * (high - low);
  return [low === 0 ? 0 : low - room, unit === "share" ? Math.min(1.005, high + room) : high + room];
};
