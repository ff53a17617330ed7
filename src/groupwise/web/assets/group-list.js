// The list of groups: filters, search, pages. Rows are reused, so that a growing list neither flickers nor jumps.
import { addressOf, change, DEFAULTS, FILTERS, state } from "./address.js";
import { byId, emptyState, make, optionOf, setText } from "./dom.js";
import { tell } from "./hub.js";
import { count, many, percent, plain } from "./numbers.js";
import { runOf } from "./runs.js";
import { get, Refused, runPath, unlessGone } from "./server.js";
import { visible } from "./visible.js";

const PAGE_SIZE = 50;
export const WORDS = { correct: "correct", wrong: "wrong", unparsed: "no answer", error: "not scored",
  timed_out: "timed out" };
export const SIGNS = { correct: "✓", wrong: "✗", unparsed: "–", error: "!", timed_out: "!" };
// The class of a verdict.
export const KINDS = { correct: "correct", wrong: "wrong", unparsed: "none", error: "error", timed_out: "error" };
const filters = byId("filters");
// The newest answer, its query, and its rows by group.
export const list = { answer: null, asked: "", rows: new Map() };
export const keyOfGroup = (group) => `${group.step}.${group.index}`;

const groupQuery = () => {
  const query = { offset: state.offset, limit: PAGE_SIZE };
  for (const name of FILTERS) query[name] = state[name];
  return query;
};
// What the answer depends on: the query, and the progress of the run.
const groupStamp = () => {
  const run = runOf(state.run);
  const newest = run ? (state.kind === "eval" ? (run.last_eval ? run.last_eval.step : -1) : run.step) : -1;
  return JSON.stringify([state.run, groupQuery(), newest]);
};
export const hasNews = () => list.asked !== groupStamp() || (list.answer && !list.answer.is_complete);
export const askGroups = async () => {
  const stamp = groupStamp();
  const { run } = state;
  byId("group-list").setAttribute("aria-busy", "true");
  try {
    const answer = await get(runPath(run, "groups"), groupQuery());
    // The filters may have changed meanwhile.
    if (stamp !== groupStamp()) return;
    Object.assign(list, { answer, asked: stamp });
    showFilterProblem(null);
  } catch (failure) {
    if (!(failure instanceof Refused)) throw failure;
    if (stamp !== groupStamp()) return;
    const answer = { groups: [], total: 0, offset: 0, is_complete: true, searched_share: 1, stages: [], token_steps: [],
      total_rollouts: 0, warnings: [], problem: failure.message };
    Object.assign(list, { answer, asked: stamp });
    showFilterProblem(failure.message);
  }
  byId("group-list").removeAttribute("aria-busy");
  showGroups();
};
const showFilterProblem = (text) => {
  byId("filter-problem").hidden = text === null;
  setText(byId("filter-problem"), visible(text || ""));
};

const verdictStrip = (group) => {
  const strip = make("span", "strip");
  strip.append(...group.verdicts.slice(0, 32).map((verdict) => {
    const mark = make("i", "chip " + KINDS[verdict], SIGNS[verdict]);
    mark.setAttribute("aria-hidden", "true");
    return mark;
  }));
  if (group.verdicts.length > 32) strip.append(make("span", "dim", "+" + (group.verdicts.length - 32)));
  const numCorrect = group.verdicts.filter((verdict) => verdict === "correct").length;
  strip.title = `${numCorrect} of ${group.verdicts.length} correct`;
  strip.append(make("span", "only-heard", strip.title));
  return strip;
};
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const excerptOf = (group) => {
  const text = make("span", "excerpt");
  const { match } = group;
  if (!match) {
    text.append(visible(group.prompt));
    return text;
  }
  const where = { prompt: "", completion: `completion ${match.rollout + 1}: `, answer: "answer: ",
    problem_id: "problem: " }[match.where];
  if (where) text.append(make("span", "dim", where));
  text.append("… " + visible(match.before), make("mark", "", visible(match.text)), visible(match.after) + " …");
  return text;
};
const groupRow = (group) => {
  const key = keyOfGroup(group);
  const row = make("a", "group-row");
  row.href = addressOf({ ...state, group: key });
  row.dataset.group = key;
  row.addEventListener("click", (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    tell("group chosen", key);
  });
  const numbers = make("span", "group-numbers");
  const reward = make("b", "", plain(group.mean_reward));
  numbers.append(reward, make("span", "dim", group.has_signal ? `spread ${plain(group.spread)}` : "no signal"),
    make("span", "dim", `${plain(Math.round(mean(group.num_tokens)))} tokens`));
  if (group.finishes.includes("length")) numbers.append(make("span", "badge", "cut off"));
  if (group.has_tokens) numbers.append(make("span", "badge tokens", "token data"));
  const step = make("span", "group-step", plain(group.step));
  step.append(make("span", "dim", visible(group.stage)));
  row.append(step, excerptOf(group), verdictStrip(group), numbers);
  return row;
};
const showGroups = () => {
  const listed = list.answer;
  showCount(listed);
  showRows(listed);
  const stages = byId("filter-stage");
  if (stages.options.length !== listed.stages.length + 1) {
    stages.replaceChildren(stages.options[0], ...listed.stages.map((name) => optionOf(name, visible(name))));
    stages.value = state.stage;
  }
};
const showCount = (listed) => {
  const last = listed.offset + listed.groups.length;
  const words = listed.total ? [`${count(listed.offset + 1)} to ${count(last)} of ${many(listed.total, "group")}, `
    + many(listed.total_rollouts, "completion")] : [];
  if (!listed.is_complete) {
    const isReading = listed.index && !listed.index.is_complete;
    words.push(isReading ? `reading rollouts: ${percent(listed.index.share)}`
      : `${percent(listed.searched_share)} searched`);
  }
  setText(byId("group-count"), words.join("; "));
  byId("pages").hidden = listed.total <= PAGE_SIZE;
  byId("newer").disabled = listed.offset === 0;
  byId("older").disabled = last >= listed.total;
};
const showRows = (listed) => {
  const place = byId("group-list");
  const before = list.rows;
  list.rows = new Map();
  for (const group of listed.groups) {
    const key = keyOfGroup(group);
    const stamp = JSON.stringify([state.run, group]);
    const old = before.get(key);
    list.rows.set(key, old && old.stamp === stamp ? old : { stamp, row: groupRow(group) });
  }
  const wanted = [...list.rows.values()].map(({ row }) => row);
  if (!wanted.length && listed.is_complete && !listed.problem) wanted.push(noGroups());
  if (wanted.length !== place.children.length || wanted.some((row, index) => place.children[index] !== row)) {
    place.replaceChildren(...wanted);
  }
};
const noGroups = () => {
  const isFiltered = FILTERS.some((name) => name !== "kind" && name !== "sort" && state[name] !== "");
  if (isFiltered) {
    return emptyState("No group matches.", "Remove a filter, or switch between training and held-out groups.");
  }
  if (state.kind === "eval") {
    return emptyState("No held-out completions yet.",
      "They are saved at each evaluation: see evaluation.every_steps.");
  }
  return emptyState("No saved rollouts yet.",
    "logging.rollouts_every_steps = 1 saves those of every step. An SFT stage samples none.");
};

export const fillFilters = () => {
  for (const name of FILTERS) {
    const field = filters.elements[name];
    if (field && field.value !== state[name] && document.activeElement !== field) field.value = state[name];
  }
  for (const tab of document.querySelectorAll("[data-kind]")) {
    tab.setAttribute("aria-pressed", String(tab.dataset.kind === state.kind));
  }
  byId("problem-filter").hidden = state.problem === "";
  setText(byId("problem-filter"), `problem ${visible(state.problem)} ✕`);
  byId("clear-filters").hidden = !FILTERS.some((name) => name !== "kind" && state[name] !== DEFAULTS[name]);
};
export const noFilters = () => Object.fromEntries(FILTERS.filter((name) => name !== "kind")
  .map((name) => [name, DEFAULTS[name]]));
export const refilter = (changes) => {
  change({ ...changes, offset: "0", group: "" });
  fillFilters();
  askGroups().catch(unlessGone);
};
let typing = 0;
filters.addEventListener("submit", (event) => event.preventDefault());
filters.addEventListener("input", (event) => {
  const { name, value } = event.target;
  if (!FILTERS.includes(name)) return;
  clearTimeout(typing);
  typing = setTimeout(() => refilter({ [name]: value }), event.target.tagName === "SELECT" ? 0 : 250);
});
for (const tab of document.querySelectorAll("[data-kind]")) {
  tab.addEventListener("click", () => refilter({ kind: tab.dataset.kind, stage: "" }));
}
byId("clear-filters").addEventListener("click", () => refilter(noFilters()));
byId("problem-filter").addEventListener("click", () => refilter({ problem: "" }));
export const turn = (by) => {
  change({ offset: String(Math.max(0, Number(state.offset) + by * PAGE_SIZE)) }, true);
  return askGroups();
};
for (const [id, by] of [["newer", -1], ["older", 1]]) {
  byId(id).addEventListener("click", () => turn(by).then(() => byId("groups").scrollIntoView()).catch(unlessGone));
}
