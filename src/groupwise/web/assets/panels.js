// The phases of a step in the order in which they happen, with colours of the palette. The last two fall between steps.
export const PHASES = [["sample", 0], ["score", 3], ["logprobs", 4], ["update", 1], ["tokens", 7], ["other", 6],
  ["eval", 2], ["checkpoint", 5]];
