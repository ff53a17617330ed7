// Numbers as text, for all pages. Pure functions.

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export const plain = (value, digits = 3) => {
  if (!isNumber(value)) return "–";
  const magnitude = Math.abs(value);
  if (magnitude === 0) return "0";
  if (magnitude >= 1e12) return value.toExponential(digits - 1).replace(/\.?0*e\+/, "e");
  if (magnitude >= 1e9) return Number((value / 1e9).toPrecision(digits)) + " G";
  if (magnitude >= 1e6) return Number((value / 1e6).toPrecision(digits)) + " M";
  if (magnitude >= 1000) {
    return value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, Math.ceil(Math.log10(magnitude))) });
  }
  if (magnitude < 1e-3) return value.toExponential(digits - 2).replace(/\.?0*e/, "e");
  return String(Number(value.toPrecision(digits)));
};

export const percent = (value, decimals = 1) => {
  const scaled = 100 * value;
  return Number(Math.abs(scaled) < 1 ? scaled.toPrecision(decimals + 1) : scaled.toFixed(decimals)) + " %";
};

export const seconds = (value) => {
  if (!isNumber(value)) return "–";
  if (value >= 5400) return (value / 3600).toFixed(1) + " h";
  if (value >= 90) return Math.round(value / 60) + " min";
  return (value >= 10 ? Math.round(value) : Number(value.toPrecision(2))) + " s";
};

export const size = (bytes, digits = 3) => {
  const names = ["B", "kB", "MB", "GB", "TB"];
  let value = bytes;
  let power = 0;
  while (Math.abs(value) >= 1000 && power < names.length - 1) {
    value /= 1000;
    power += 1;
  }
  return Number(value.toPrecision(digits)) + " " + names[power];
};

export const count = (value) => value.toLocaleString("en");
export const many = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

// A value with its unit, as in the metric catalogue.
export const sayValue = (value, unit) => {
  if (!isNumber(value)) return "–";
  if (unit === "share") return percent(value);
  if (unit === "bytes") return size(value);
  if (unit === "s") return seconds(value);
  return plain(value) + (unit && unit !== "count" ? " " + unit : "");
};

// A tick is round, so all of its digits are few. Fewer could make neighbours equal.
const TICK_DIGITS = 9;
export const sayTick = (value, unit) => {
  if (unit === "share") return percent(value, TICK_DIGITS);
  return unit === "bytes" ? size(value, TICK_DIGITS) : plain(value, TICK_DIGITS);
};

export const interval = (low, high, unit) => {
  if (unit === "share") return `${percent(low).slice(0, -2)} to ${percent(high)}`;
  const say = unit === "bytes" ? size : plain;
  return `${say(low)} to ${say(high)}`;
};
