// Axes: ticks, quantiles, ranges.
import assert from "node:assert/strict";
import { test } from "node:test";
import { sayTick } from "../../src/groupwise/web/assets/numbers.js";
import {
  explodes, logTicks, quantile, sortedSome, ticks, valueRange, valueTicks,
} from "../../src/groupwise/web/assets/scales.js";

const line = (y, more = {}) => ({ y, shown: y, ...more });
const LINEAR = { isStack: false, isLog: false, unit: "" };
const near = (found, wanted) => {
  assert.equal(found.length, wanted.length);
  found.forEach((value, index) => assert.ok(Math.abs(value - wanted[index]) < 1e-9 * Math.max(1, Math.abs(value)),
    `${found} is not ${wanted}`));
};

test("ticks are round and inside", () => {
  assert.deepEqual(ticks(0, 1, 4), [0, 0.25, 0.5, 0.75, 1]);
  assert.deepEqual(ticks(0, 61, 7), [0, 10, 20, 30, 40, 50, 60]);
  assert.deepEqual(ticks(0.93, 1.005, 4), [0.94, 0.96, 0.98, 1]);
  assert.deepEqual(ticks(-0.01, 0.01, 4), [-0.01, -0.005, 0, 0.005, 0.01]);
  assert.deepEqual(ticks(0, 0.0000003, 3), [0, 1e-7, 2e-7, 3e-7]);
});

test("log ticks are 1, 2, 5 or, over three decades, powers of ten, at most six", () => {
  near(logTicks(0.09, 1.1), [0.1, 0.2, 0.5, 1]);
  near(logTicks(1, 1000), [1, 5, 20, 100, 500]);
  near(logTicks(0.001, 100), [0.001, 0.01, 0.1, 1, 10, 100]);
  near(logTicks(1e-6, 1e6), [1e-6, 1e-3, 1, 1e3, 1e6]);
});

test("a log axis with too few powers has linear ticks above 0", () => {
  assert.deepEqual(valueTicks([0.6, 0.95], true), [0.6, 0.7, 0.8, 0.9]);
  near(valueTicks([0.09, 1.1], true), [0.1, 0.2, 0.5, 1]);
  assert.deepEqual(valueTicks([0, 1], false), [0, 0.25, 0.5, 0.75, 1]);
});

test("ticks that differ in a late digit are told apart", () => {
  const labels = (low, high, unit) => valueTicks([low, high], false).map((tick) => sayTick(tick, unit));
  assert.deepEqual(labels(5.5601, 5.5609, "nats"), ["5.5602", "5.5604", "5.5606", "5.5608"]);
  assert.deepEqual(labels(0.9521, 0.9529, "share"), ["95.22 %", "95.24 %", "95.26 %", "95.28 %"]);
  assert.deepEqual(labels(1000.1, 1000.9, ""), ["1,000.2", "1,000.4", "1,000.6", "1,000.8"]);
  assert.deepEqual(labels(0, 3e-4, ""), ["0", "1e-4", "2e-4", "3e-4"]);
});

test("quantiles are values that occur", () => {
  assert.equal(quantile([1, 2, 3, 4], 0), 1);
  assert.equal(quantile([1, 2, 3, 4], 0.5), 3);
  assert.equal(quantile([1, 2, 3, 4], 1), 4);
  assert.equal(quantile([], 0.5), undefined);
});

test("some known values of a line, sorted as numbers", () => {
  assert.deepEqual([...sortedSome([10, null, 9, NaN, 1])], [1, 9, 10]);
  assert.deepEqual([...sortedSome([5, 4, 3, 2, 1, 0], 3)], [1, 3, 5]);
});

test("what is a thousand times the median explodes", () => {
  assert.equal(explodes([line([1, 1, 1001])]), true);
  assert.equal(explodes([line([1, 1, 1000])]), false);
  assert.equal(explodes([line([0, 0, 5])]), false);
  assert.equal(explodes([line([null]), line([])]), false);
  assert.equal(explodes([]), false);
});

test("an axis begins at 0 where the values are not far from it", () => {
  near(valueRange([line([2, 10])], LINEAR), [0, 10.6]);
  near(valueRange([line([8, 10])], LINEAR), [7.88, 10.12]);
  near(valueRange([line([-1, 1])], LINEAR), [-1.12, 1.12]);
  assert.equal(valueRange([line([null, NaN])], LINEAR), null);
  assert.equal(valueRange([], LINEAR), null);
});

test("a share does not go beyond 100 %", () => {
  near(valueRange([line([0.2, 1])], { ...LINEAR, unit: "share" }), [0, 1.005]);
});

test("rounding is no signal, and one value has room", () => {
  assert.deepEqual(valueRange([line([1e-9, -1e-9])], LINEAR), [-0.01, 0.01]);
  assert.deepEqual(valueRange([line([0, 0])], { ...LINEAR, unit: "share" }), [0, 0.1]);
  near(valueRange([line([10, 10])], LINEAR), [4.4, 15.6]);
});

test("bands and tops are shown, single outliers behind a smooth line are not", () => {
  near(valueRange([line([5, 5], { low: [0, 4], high: [6, 10] })], LINEAR), [0, 10.6]);
  near(valueRange([line([1, 1], { top: [1, 10] })], { ...LINEAR, isStack: true }), [0, 10.6]);
  const raw = Array.from({ length: 100 }, (unused, index) => (index === 50 ? 1000 : 10));
  near(valueRange([{ y: raw, shown: raw.map(() => 5) }], LINEAR), [0, 10.6]);
});

test("a log axis has room by factors, and six decades at most", () => {
  const isLog = { ...LINEAR, isLog: true };
  near(valueRange([line([0, 1, 100])], isLog), [1 / 1.15, 115]);
  near(valueRange([line([3, 3])], isLog), [1.5, 6]);
  assert.equal(valueRange([line([0, -1])], isLog), null);
  near(valueRange([line([1e-9, 1, 1, 1])], isLog), [1e-6 / 1.15, 1.15]);
  // Two values above 0 that are not among those looked at.
  const rare = Array.from({ length: 5000 }, (unused, index) => ({ 1: 1, 2: 10 }[index] ?? 0));
  near(valueRange([line(rare)], isLog), [1 / 1.15, 11.5]);
  // Where a value exploded, the others stay on the axis.
  near(valueRange([line([0.4, 0.4, 0.4, 3e14])], isLog), [0.4 / 1.15, 3e14 * 1.15]);
});
