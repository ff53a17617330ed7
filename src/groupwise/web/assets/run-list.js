// The list of runs. Rows are updated in place, in the order in which the runs first appeared, newest on top.
import { change, state } from "./address.js";
import { button, byId, colourOf, make, paint, setText } from "./dom.js";
import { tell } from "./hub.js";
import { interval, many, percent, plain } from "./numbers.js";
import { chosenRuns, findingsOf, nameOf, runOf, slots, watched } from "./runs.js";
import { visible } from "./visible.js";

const rows = new Map();
const rowOf = (id) => {
  if (rows.has(id)) return rows.get(id);
  const row = make("div", "run-row");
  row.dataset.run = id;
  const box = make("input");
  box.type = "checkbox";
  box.title = "Draw this run's curves";
  const name = button("", () => choose(id), "run-name");
  const facts = make("div", "run-facts");
  const progress = make("div", "progress");
  const bar = make("div");
  progress.append(bar);
  row.append(box, name, facts, progress);
  box.addEventListener("change", () => (box.checked ? add(id) : remove(id)));
  const parts = { row, box, name, facts, bar, progress };
  rows.set(id, parts);
  return parts;
};

const factsOf = (run) => {
  const mark = make("span", "mark");
  mark.append(make("i", "dot " + run.state), run.state);
  const steps = run.planned_steps ? `${plain(run.step)} / ${plain(run.planned_steps)}` : `step ${plain(run.step)}`;
  const shown = [mark, make("span", "", steps)];
  if (run.last_eval) {
    const score = make("span", "", "held-out ");
    score.append(make("b", "", percent(run.last_eval.pass_at_1)),
      ` (${interval(run.last_eval.low, run.last_eval.high, "share")})`);
    shown.push(score);
  }
  const found = findingsOf(run.id);
  if (found && found.findings.length) {
    const hasProblem = found.findings.some((finding) => finding.severity === "problem");
    const number = found.findings.length;
    shown.push(make("span", hasProblem ? "problem" : "", `${hasProblem ? "▲" : "△"} ${many(number, "finding")}`));
  }
  if (run.errors.length) {
    const damage = make("span", "problem", `▲ ${many(run.errors.length, "damaged file")}`);
    damage.title = visible(run.errors.join("\n"));
    shown.push(damage);
  }
  return shown;
};

const showRow = (run) => {
  const { row, box, name, facts, bar, progress } = rowOf(run.id);
  const isChosen = chosenRuns().includes(run.id);
  row.classList.toggle("chosen", run.id === state.run);
  if (isChosen) paint(row, colourOf(slots.get(run.id))); else row.style.removeProperty("--c");
  box.checked = isChosen;
  box.setAttribute("aria-label", `Draw the curves of ${visible(nameOf(run.id))}`);
  setText(name, visible(nameOf(run.id)));
  name.title = visible(run.path);
  if (run.id === state.run) name.setAttribute("aria-current", "true"); else name.removeAttribute("aria-current");
  const shown = factsOf(run);
  const text = shown.map((element) => element.textContent + element.className).join("|") + run.state;
  if (facts.dataset.text !== text) { facts.dataset.text = text; facts.replaceChildren(...shown); }
  progress.hidden = !run.planned_steps;
  if (run.planned_steps) bar.style.width = Math.min(100, (100 * run.step) / run.planned_steps) + "%";
};

export const showRuns = () => {
  const { runs } = watched;
  setText(byId("run-count"), runs.length === 1 ? "1 run" : `${runs.length} runs`);
  for (const [id, parts] of rows) if (!runOf(id)) { parts.row.remove(); rows.delete(id); }
  for (const run of [...runs].reverse()) {
    showRow(run);
    const { row } = rowOf(run.id);
    if (!row.isConnected) byId("run-list").prepend(row);
  }
};

const choose = (id) => {
  const others = state.with.includes(id) ? [state.run, ...state.with].filter((other) => other !== id) : [];
  change({ run: id, with: others.filter(Boolean), offset: "0", group: "", against: "" }, true);
  if (matchMedia("(max-width: 62rem)").matches) byId("runs").open = false;
  tell("runs chosen");
};
const add = (id) => {
  if (!state.run) { choose(id); return; }
  change({ with: [...state.with.filter((other) => other !== id), id] });
  tell("runs chosen");
};
const remove = (id) => {
  const left = [state.run, ...state.with].filter((other) => other !== id && other);
  const isFront = id === state.run;
  change({ run: left[0] || "", with: left.slice(1), ...(isFront ? { group: "", offset: "0" } : {}) });
  tell("runs chosen");
};
