// Numbers in words.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  count, interval, isNumber, many, percent, plain, sayTick, sayValue, seconds, size,
} from "../../src/groupwise/web/assets/numbers.js";

const cases = (say, table) => {
  for (const [given, said] of table) {
    assert.equal(say(...[given].flat()), said, `of ${JSON.stringify(given)}`);
  }
};

test("only finite numbers are numbers", () => {
  assert.deepEqual([0, -1.5, NaN, Infinity, "1", null, undefined].map(isNumber),
    [true, true, false, false, false, false, false]);
});

test("a plain number has three digits that count", () => {
  cases(plain, [[0, "0"], [0.12345, "0.123"], [-0.5, "-0.5"], [12.345, "12.3"], [999.6, "1000"], [1234.5, "1,235"],
    [-20000, "-20,000"], [1234567, "1.23 M"], [2e9, "2 G"], [0.00012, "1.2e-4"], [3e14, "3e14"], [1.25e13, "1.25e13"],
    [null, "–"], [NaN, "–"]]);
});

test("shares are in per cent, small ones with two digits", () => {
  cases(percent, [[0.5, "50 %"], [0.1234, "12.3 %"], [1, "100 %"], [0, "0 %"], [0.00123, "0.12 %"], [-0.25, "-25 %"]]);
});

test("seconds become minutes and hours", () => {
  cases(seconds, [[0.04321, "0.043 s"], [9.87, "9.9 s"], [10.4, "10 s"], [89.4, "89 s"], [90, "2 min"],
    [5399, "90 min"], [5400, "1.5 h"], [null, "–"]]);
});

test("bytes go up in thousands", () => {
  cases(size, [[0, "0 B"], [999, "999 B"], [1000, "1 kB"], [40e9, "40 GB"], [1.2345e13, "12.3 TB"], [5e15, "5000 TB"]]);
});

test("how many", () => {
  assert.equal(count(12544), "12,544");
  assert.equal(many(1, "group"), "1 group");
  assert.equal(many(1200, "group"), "1,200 groups");
});

test("a value is said with its unit", () => {
  cases((value, unit) => sayValue(value, unit), [[[0.5, "share"], "50 %"], [[2e9, "bytes"], "2 GB"],
    [[120, "s"], "2 min"], [[7, "count"], "7"], [[0.5, "nats"], "0.5 nats"], [[0.5, ""], "0.5"],
    [[3.2e9, "tokens"], "3.2 G tokens"], [[null, "share"], "–"]]);
});

test("ticks and intervals leave out what is said already", () => {
  cases((value, unit) => sayTick(value, unit), [[[0.5, "share"], "50 %"], [[2e9, "bytes"], "2 GB"],
    [[0.5, "nats"], "0.5"]]);
  assert.equal(interval(0.521, 0.656, "share"), "52.1 to 65.6 %");
  assert.equal(interval(0.1, 0.25, "nats"), "0.1 to 0.25");
});
