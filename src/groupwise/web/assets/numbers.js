// Numbers as text, for all pages. Pure functions.

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export const plain = (value) => {
  if (!isNumber(value)) return "–";
  const magnitude = Math.abs(value);
  if (magnitude === 0) return "0";
  if (magnitude >= 1e12) return value.toExponential(2).replace(/\.?0*e\+/, "e");
  if (magnitude >= 1e9) return Number((value / 1e9).toPrecision(3)) + " G";
  if (magnitude >= 1e6) return Number((value / 1e6).toPrecision(3)) + " M";
  if (magnitude >= 1000) return Math.round(value).toLocaleString("en");
  if (magnitude < 1e-3) return value.toExponential(1).replace(".0e", "e");
  return String(Number(value.toPrecision(3)));
};

export const percent = (value) => {
  const scaled = 100 * value;
  // Ticks below 1 % need more than one decimal.
  return Number(Math.abs(scaled) < 1 ? scaled.toPrecision(2) : scaled.toFixed(1)) + " %";
};

export const seconds = (value) => {
  if (!isNumber(value)) return "–";
  if (value >= 5400) return (value / 3600).toFixed(1) + " h";
  if (value >= 90) return Math.round(value / 60) + " min";
  return (value >= 10 ? Math.round(value) : Number(value.toPrecision(2))) + " s";
};

export const size = (bytes) => {
  const names = ["B", "kB", "MB", "GB", "TB"];
  let value = bytes;
  let power = 0;
  while (Math.abs(value) >= 1000 && power < names.length - 1) {
    value /= 1000;
    power += 1;
  }
  return Number(value.toPrecision(3)) + " " + names[power];
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

// A value next to others of its unit: a tick, the end of an interval.
export const sayTick = (value, unit) => {
  if (unit === "share") return percent(value);
  return unit === "bytes" ? size(value) : plain(value);
};

export const interval = (low, high, unit) => (unit === "share" ? `${percent(low).slice(0, -2)} to ${percent(high)}`
  : `${sayTick(low, unit)} to ${sayTick(high, unit)}`);
