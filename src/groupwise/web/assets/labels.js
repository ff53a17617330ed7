// Labels as data: what of an entry is taken, and which of two labels of a chain stays. Pure functions.
const ANSWERS = new Set(["right", "wrong", "unsure"]);
const MAX_NOTE_CHARS = 10000;

// A label as it is kept, or null where the entry is none.
export const cleanLabel = (entry) => {
  if (entry === null || typeof entry !== "object" || typeof entry.chain !== "string") return null;
  if (Number.isNaN(Date.parse(entry.time))) return null;
  const answer = (value) => (ANSWERS.has(value) ? value : null);
  const note = typeof entry.note === "string" ? entry.note.slice(0, MAX_NOTE_CHARS) : "";
  return { chain: entry.chain, verdict: answer(entry.verdict), reasoning: answer(entry.reasoning), note,
    time: new Date(entry.time).toISOString() };
};

// Put those entries into `labels` that are newer than what is there; how many they are.
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

// When a label changes: now, but later than what it replaces, even where that came from a clock ahead of this one.
export const timeAfter = (old, now) => new Date(Math.max(now, old === "" ? 0 : Date.parse(old) + 1)).toISOString();
