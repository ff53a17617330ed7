// Lines as numbers: smoothing, gaps, thinning, stacks.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  indexAt, lastKnown, longestJoin, nearestIndex, pieces, smoothed, smoothedLogs, stacked, thinned,
} from "../../src/groupwise/web/assets/curves.js";

const near = (found, wanted) => {
  assert.equal(found.length, wanted.length);
  found.forEach((value, index) => {
    if (wanted[index] === null) assert.equal(value, null);
    else assert.ok(Math.abs(value - wanted[index]) < 1e-12, `${found} is not ${wanted}`);
  });
};

test("the last index not after a step", () => {
  assert.deepEqual([0, 1, 2, 5, 6, 9].map((step) => indexAt([1, 5, 6], step)), [-1, 0, 0, 1, 2, 2]);
  assert.equal(indexAt([], 3), -1);
});

test("the nearest index; of two alike the earlier", () => {
  assert.deepEqual([0, 1, 3, 4, 9].map((step) => nearestIndex([1, 5, 6], step)), [0, 0, 0, 1, 2]);
  assert.equal(nearestIndex([], 3), -1);
});

test("the last known value", () => {
  assert.equal(lastKnown([1, 2, null, NaN]), 1);
  assert.equal(lastKnown([null]), -1);
});

test("a running mean forgets, and looks back only", () => {
  const values = [1, 3];
  assert.equal(smoothed(values, 0), values);
  // 1, then (0.5·1 + 1·3) / 1.5; an unknown value is left out.
  near(smoothed([1, null, 3], 0.5), [1, null, 7 / 3]);
  near(smoothed([4, 4, 4], 0.9), [4, 4, 4]);
  assert.deepEqual(smoothed([1, 2, 3, 4], 0.8).slice(0, 3), smoothed([1, 2, 3], 0.8));
});

test("on a log axis the mean is of logs, and 0 has none", () => {
  near(smoothedLogs([1, 0, 8], 0.5), [1, null, 4]);
  const values = [0];
  assert.equal(smoothedLogs(values, 0), values);
});

test("neighbours are joined up to five times the usual distance", () => {
  assert.equal(longestJoin([0, 2, 4, 6, 40]), 10);
  assert.equal(longestJoin([3]), Infinity);
});

test("a line is broken at what is not known and at what is too far apart", () => {
  assert.deepEqual(pieces([1, 2, 3, 4, 5], [1, 1, null, 1, NaN]), [[0, 1], [3]]);
  assert.deepEqual(pieces([1, 2, 20, 21], [1, 1, 1, 1], 10), [[0, 1], [2, 3]]);
  assert.deepEqual(pieces([1, 2, 20, 21], [1, 1, 1, 1]), [[0, 1, 2, 3]]);
  assert.deepEqual(pieces([], []), []);
});

test("of each column the first, the least, the largest and the last are left, in their order", () => {
  const values = [5, 1, 9, 4, 3, 3, 3, 2, 7, 2];
  const steps = values.map((value, index) => index);
  const all = [...steps];
  const columns = { numColumns: 2, low: 0, high: 10 };
  assert.deepEqual(thinned(all, steps, values, columns), [0, 1, 2, 4, 5, 7, 8, 9]);
  assert.deepEqual(thinned([2, 3], steps, values, columns), [2, 3]);
  assert.deepEqual(thinned([], steps, values, columns), []);
  // As many columns as steps: nothing is left out.
  assert.deepEqual(thinned(all, steps, values, { ...columns, numColumns: 10 }), all);
});

test("thinning keeps the one step that differs, whatever its place", () => {
  const steps = Array.from({ length: 10000 }, (unused, index) => index);
  for (const place of [0, 1, 4999, 5000, 9999]) {
    const values = steps.map((step) => (step === place ? 10 : Math.sin(step)));
    const kept = thinned(steps, steps, values, { numColumns: 100, low: 0, high: 10000 });
    assert.ok(kept.length <= 400);
    assert.ok(kept.includes(place));
    assert.deepEqual(kept, [...kept].sort((a, b) => a - b));
  }
});

test("lines are stacked in their order; what is not known adds nothing", () => {
  const [first, second] = stacked([{ x: [1, 2], y: [1, null], name: "a" }, { x: [1, 2], y: [2, 3] }]);
  assert.deepEqual([first.base, first.top, first.name], [[0, 0], [1, 0], "a"]);
  assert.deepEqual([second.base, second.top], [[1, 0], [3, 3]]);
  assert.deepEqual(stacked([]), []);
});
