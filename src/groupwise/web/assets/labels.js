// Labels as data: checking of entries, and which of two labels of a chain wins. Pure functions.
const ANSWERS = new Set(["right", "wrong", "unsure"]);
const MAX_NOTE_CHARS = 10000;

// The label of an entry, or null if the entry is invalid.
export const cleanLabel = (entry) => {
  if (entry === null || typeof entry !== "object" || typeof entry.chain !== "string") return null;
  if (Number.isNaN(Date.parse(entry.time))) return null;
  const answer = (value) => (ANSWERS.has(value) ? value : null);
  const note = typeof entry.note === "string" ? entry.note.slice(0, MAX_NOTE_CHARS) : "";
  return { chain: entry.chain, verdict: answer(entry.verdict), reasoning: answer(entry.reasoning), note,
    time: new Date(entry.time).toISOString() };
};

// Merge the newer entries into `labels` and return their number.
export const takeLabels = (labels, entries) => {
  let taken = 0;
  for (const entry of entries) {
    const label = cleanLabel(entry);
    if (label === null) continue;
    const old = labels.get(label.chain);
    if (old === undefined || Date.parse(label.time) > Date.parse(old.time)) {
      labels.set(label.chain, label);
      taken += 1;
    }
  }
  return taken;
};

export const isLabelled = (label) => label !== undefined && (label.verdict !== null || label.reasoning !== null);

// The time of a changed label: now, but later than the label it replaces, whose clock may have been ahead.
export const timeAfter = (old, now) => new Date(Math.max(now, old === "" ? 0 : Date.parse(old) + 1)).toISOString();
