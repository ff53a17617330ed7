// The data of each run: its metrics as columns over steps, extended by the new lines from the server.
import { state } from "./address.js";
import { lastKnown } from "./curves.js";
import { tell } from "./hub.js";
import { get, Refused, runPath } from "./server.js";

// The newest answer of the server about its runs.
export const watched = { runs: [], catalogue: {}, charts: [], warnings: [], isLoaded: false };
export const runOf = (id) => watched.runs.find((run) => run.id === id);
export const nameOf = (id) => (runOf(id) || { name: id }).name;
// The selected run comes first and has the first colour.
export const chosenRuns = () => [state.run, ...state.with.filter((id) => id !== state.run)].filter(runOf);

// A run keeps its colour while it is drawn.
export const slots = new Map();
export const giveSlots = () => {
  const chosen = chosenRuns();
  for (const id of [...slots.keys()]) if (!chosen.includes(id)) slots.delete(id);
  for (const id of chosen) {
    let slot = 0;
    while ([...slots.values()].includes(slot)) slot += 1;
    if (!slots.has(id)) slots.set(id, slot);
  }
};

const known = new Map();
export const dataOf = (id) => {
  if (!known.has(id)) {
    known.set(id, { cursors: {}, steps: [], stages: [], columns: new Map(), evals: [], findings: null,
      askedFindings: 0, warnings: [], version: 0 });
  }
  return known.get(id);
};
export const findingsOf = (id) => (known.has(id) ? known.get(id).findings : null);

const forget = (data, file) => {
  if (file === "metrics") Object.assign(data, { steps: [], stages: [], columns: new Map() });
  else data[file] = [];
};
const take = (data, file, lines) => {
  if (file !== "metrics") { data[file].push(...lines); return; }
  for (const line of lines) {
    const index = data.steps.length;
    data.steps.push(line.step);
    const stage = data.stages.at(-1);
    if (stage && stage.name === line.stage) stage.last = line.step;
    else data.stages.push({ name: line.stage, first: line.step, last: line.step });
    for (const [name, value] of Object.entries(line.metrics)) {
      let column = data.columns.get(name);
      if (!column) data.columns.set(name, column = []);
      while (column.length < index) column.push(null);
      column.push(value);
    }
  }
};

const warn = (id, text) => {
  const { warnings } = dataOf(id);
  if (!warnings.includes(text)) warnings.push(text);
};
// A run that cannot be read must not hide the others.
export const orWarn = (id, asked) => asked.catch((failure) => {
  if (!(failure instanceof Refused)) throw failure;
  warn(id, failure.message);
  return null;
});
export const advance = async (id, file) => {
  const data = dataOf(id);
  for (;;) {
    const answer = await get(runPath(id, file), { cursor: data.cursors[file] });
    // The first answer is always a reset.
    if (answer.is_reset) forget(data, file);
    take(data, file, answer.lines);
    data.cursors[file] = answer.cursor;
    if (answer.is_reset || answer.lines.length) data.version += 1;
    for (const warning of answer.warnings) warn(id, warning);
    if (!answer.has_more) return;
    // A long run is drawn as far as it has been read.
    tell("curves grew");
  }
};

export const columnOf = (data, name) => {
  const column = data.columns.get(name);
  if (!column) return null;
  while (column.length < data.steps.length) column.push(null);
  return column;
};
export const lastOf = (data, name) => {
  const column = columnOf(data, name);
  const index = column ? lastKnown(column) : -1;
  return index < 0 ? null : column[index];
};
export const stagesOf = (id) => (known.has(id) ? known.get(id).stages : []);
export const stepRange = () => {
  let high = 1;
  for (const id of chosenRuns()) {
    const data = dataOf(id);
    high = Math.max(high, data.steps.at(-1) || 0, data.evals.length ? data.evals.at(-1).step : 0);
  }
  return [0, high];
};

export const meaningOf = (name) => {
  const family = Object.keys(watched.catalogue).find((other) => other.endsWith("/") && name.startsWith(other));
  const entry = watched.catalogue[name] || watched.catalogue[family];
  return entry ? entry.meaning : "";
};
export const unitOf = (name) => (watched.catalogue[name] ? watched.catalogue[name].unit : "");
