// Text made visible, the address, labels, and what rows of pills can be narrowed to.
import assert from "node:assert/strict";
import { test } from "node:test";
import { addressOf, DEFAULTS, tableOf } from "../../src/groupwise/web/assets/address.js";
import { cleanLabel, isLabelled, takeLabels, timeAfter } from "../../src/groupwise/web/assets/labels.js";
import { filtersOf, rateOf } from "../../src/groupwise/web/assets/pills.js";
import { visible } from "../../src/groupwise/web/assets/visible.js";

test("what a reader would not see is shown as its code point", () => {
  assert.equal(visible("a\u001b[31m\u202eb\u0000"), "a⟨U+001B⟩[31m⟨U+202E⟩b⟨U+0000⟩");
  assert.equal(visible("a\r\nb\tc"), "a\nb\tc");
  assert.equal(visible("a\rb"), "a⟨U+000D⟩b");
  assert.equal(visible("\ud800x \u{1f600} \udc00"), "⟨U+D800⟩x \u{1f600} ⟨U+DC00⟩");
  assert.equal(visible("<b>&amp;"), "<b>&amp;");
  assert.equal(visible(3), "3");
});

test("the address keeps what is not usual, and is read back", () => {
  assert.equal(addressOf(DEFAULTS), "#");
  const table = { ...DEFAULTS, run: "a", with: ["b,c", "d"], q: "x & y = z", offset: "50" };
  assert.deepEqual(tableOf(addressOf(table)), table);
  assert.deepEqual(tableOf(""), DEFAULTS);
});

test("a number that is none, and a name that is none, are not taken from an address", () => {
  assert.deepEqual(tableOf("#offset=abc&smooth=0.8&view=groups&nothing=1"),
    { ...DEFAULTS, smooth: "0.8", view: "groups" });
});

test("of a label is taken what is known", () => {
  const entry = { chain: "c", verdict: "right", reasoning: "perhaps", note: 3, time: "2030-01-01T00:00:00Z", more: 1 };
  assert.deepEqual(cleanLabel(entry),
    { chain: "c", verdict: "right", reasoning: null, note: "", time: "2030-01-01T00:00:00.000Z" });
  assert.equal(cleanLabel({ ...entry, note: "x".repeat(20000) }).note.length, 10000);
  for (const none of [null, 3, "c", {}, { ...entry, chain: 3 }, { ...entry, time: "soon" }]) {
    assert.equal(cleanLabel(none), null);
  }
});

test("the newer of two labels stays", () => {
  const labels = new Map();
  const entry = (time, verdict) => ({ chain: "c", verdict, reasoning: null, note: "", time });
  assert.equal(takeLabels(labels, [entry("2030-01-02T00:00:00Z", "right"), null]), 1);
  assert.equal(takeLabels(labels, [entry("2030-01-01T00:00:00Z", "wrong")]), 0);
  assert.equal(takeLabels(labels, [entry("2030-01-02T00:00:00Z", "wrong")]), 0);
  assert.equal(labels.get("c").verdict, "right");
  assert.equal(takeLabels(labels, [entry("2030-01-03T00:00:00Z", "wrong")]), 1);
  assert.equal(labels.get("c").verdict, "wrong");
});

test("a change is later than what it replaces", () => {
  const now = Date.parse("2030-01-01T00:00:00Z");
  assert.equal(timeAfter("", now), "2030-01-01T00:00:00.000Z");
  assert.equal(timeAfter("2029-01-01T00:00:00Z", now), "2030-01-01T00:00:00.000Z");
  assert.equal(timeAfter("2031-01-01T00:00:00Z", now), "2031-01-01T00:00:00.001Z");
});

test("a note alone does not make a chain labelled", () => {
  assert.equal(isLabelled(undefined), false);
  assert.equal(isLabelled({ verdict: null, reasoning: null, note: "x" }), false);
  assert.equal(isLabelled({ verdict: null, reasoning: "unsure" }), true);
});

test("rates leave out what was not scored", () => {
  const cell = (...kinds) => kinds.map((kind) => ({ kind }));
  assert.equal(rateOf(cell("correct", "wrong", "error", "none", "correct")), 0.5);
  assert.equal(rateOf(cell("error")), null);
});

test("rows are narrowed by how the last model differs from the first", () => {
  const cell = (numCorrect) => [0, 1].map((number) => ({ kind: number < numCorrect ? "correct" : "wrong" }));
  const problem = (before, after) => ({ cells: [cell(before), cell(1), cell(after)] });
  const problems = [problem(0, 2), problem(2, 1), problem(2, 2), problem(0, 0), problem(1, 1)];
  const found = filtersOf(3).map(([name, isWanted]) => [name, problems.map(isWanted).map(Number).join("")]);
  assert.deepEqual(found, [["All", "11111"], ["Gained", "10000"], ["Lost", "01000"], ["Always right", "00100"],
    ["Still wrong", "00010"]]);
  assert.deepEqual(filtersOf(1).map(([name]) => name), ["All", "Right", "Wrong"]);
});
