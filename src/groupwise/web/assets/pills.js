// Problem by problem: rows of pills, and a dialog with the completions.
import { button, byId, make } from "./dom.js";
import { plain } from "./numbers.js";

const WORDS = { correct: "correct", wrong: "wrong", none: "no answer", error: "not scored" };
const SIGNS = { correct: "✓", wrong: "✗", none: "–", error: "!" };
const MAX_IN_CELL = 4;
const PAGE_SIZE = 25;

// The share of correct completions among the scored ones; null if there are none.
export const rateOf = (cell) => {
  const judged = cell.filter((entry) => entry.kind !== "error");
  return judged.length ? judged.filter((entry) => entry.kind === "correct").length / judged.length : null;
};

// The filters of the rows: a name and a test of a problem each.
export const filtersOf = (numModels) => {
  const first = (problem) => rateOf(problem.cells[0]);
  const last = (problem) => rateOf(problem.cells.at(-1));
  if (numModels === 1) {
    return [
      ["All", () => true],
      ["Right", (problem) => last(problem) > 0],
      ["Wrong", (problem) => last(problem) === 0],
    ];
  }
  return [
    ["All", () => true],
    ["Gained", (problem) => last(problem) > first(problem)],
    ["Lost", (problem) => last(problem) < first(problem)],
    ["Always right", (problem) => first(problem) === 1 && last(problem) === 1],
    ["Still wrong", (problem) => first(problem) === 0 && last(problem) === 0],
  ];
};

const pillOf = (entry, model, open) => {
  const pill = open ? button("", open, "pill " + entry.kind) : make("span", "pill " + entry.kind);
  const sign = make("span", "", SIGNS[entry.kind]);
  sign.setAttribute("aria-hidden", "true");
  pill.append(sign, make("span", "", entry.answer || WORDS[entry.kind]));
  if (open) pill.setAttribute("aria-label", `${model}: ${WORDS[entry.kind]}, ${entry.answer || "no answer"}. Open.`);
  return pill;
};

const rowOf = (problem, models, open) => {
  const row = make("div", "row");
  const question = make("div");
  question.append(make("div", "question-text", problem.question),
    make("div", "gold", "gold: " + (problem.gold || "–")));
  row.append(question);
  problem.cells.forEach((entries, number) => {
    const cell = make("div", "cell");
    cell.append(make("span", "model", models[number]));
    for (const entry of entries.slice(0, MAX_IN_CELL)) cell.append(pillOf(entry, models[number], open));
    if (entries.length > MAX_IN_CELL) cell.append(make("span", "gold", "+" + (entries.length - MAX_IN_CELL)));
    row.append(cell);
  });
  return row;
};

const textBlock = (text, label) => {
  if (text === null) return make("p", "dim", "Left out to keep this page small; it is in the run directory.");
  const block = make("pre", "", text);
  block.tabIndex = 0;
  block.setAttribute("aria-label", label);
  return block;
};

const completionBlock = (entry, text, label) => {
  const block = make("div", "completion");
  const heading = make("h4", "", label);
  heading.append(pillOf(entry, label, null));
  const facts = [`reward ${plain(entry.reward)}`, `${entry.tokens} tokens`, `ended by ${entry.finish}`];
  if (entry.detail) facts.push(`verifier: ${entry.detail}`);
  block.append(heading, textBlock(text, "Completion"), make("p", "facts", facts.join(" · ")));
  return block;
};

export const showPills = (section, texts) => {
  const { models, problems } = section;
  let chosen = problems;
  const open = showDialog(section, texts, () => chosen);
  const show = showRows(models, () => chosen, open);
  const tools = document.querySelector(".pill-tools");
  for (const [name, isWanted] of filtersOf(models.length)) {
    const matching = problems.filter(isWanted);
    const choice = button(`${name} ${matching.length}`, () => {
      for (const other of tools.children) other.setAttribute("aria-pressed", String(other === choice));
      chosen = matching;
      show(PAGE_SIZE);
    });
    choice.setAttribute("aria-pressed", String(name === "All"));
    tools.append(choice);
  }
  show(PAGE_SIZE);
  const linked = /^#problem-(\d+)$/.exec(location.hash);
  if (linked && problems[linked[1] - 1]) open(linked[1] - 1);
};

// Return the function that shows a number of rows of the chosen problems.
const showRows = (models, chosenNow, open) => {
  const place = document.querySelector("[data-pills]");
  place.style.setProperty("--models", models.length);
  let numShown = 0;
  const more = button("", () => show(numShown + PAGE_SIZE));
  const all = button("", () => show(chosenNow().length));
  const moreTools = make("div", "pill-tools more");
  moreTools.append(more, all);
  place.after(moreTools);
  const show = (wanted) => {
    const chosen = chosenNow();
    numShown = wanted;
    const head = make("div", "row head");
    head.append(make("div", "", "problem"), ...models.map((name) => make("div", "", name)));
    const rows = chosen.slice(0, numShown).map((problem, index) => rowOf(problem, models, () => open(index)));
    place.replaceChildren(head, ...rows, ...(chosen.length ? [] : [make("p", "dim", "No problem matches.")]));
    more.hidden = all.hidden = chosen.length <= numShown;
    more.textContent = `Show ${Math.min(PAGE_SIZE, chosen.length - numShown)} more`;
    all.textContent = `Show all ${chosen.length}`;
  };
  return show;
};

// Return the function that opens the dialog at an index of the chosen problems.
const showDialog = ({ models, problems }, texts, chosenNow) => {
  const dialog = byId("problem");
  const textOf = (number) => (number === null ? null : texts[number]);
  let opened = 0;
  const open = (index) => {
    const chosen = chosenNow();
    opened = (index + chosen.length) % chosen.length;
    const problem = chosen[opened];
    byId("problem-title").textContent = `${problem.id} · ${opened + 1} of ${chosen.length}`;
    const blocks = problem.cells.flatMap((entries, number) => entries.map((entry, rollout) => completionBlock(
      entry, textOf(entry.text), models[number] + (entries.length > 1 ? `, completion ${rollout + 1}` : ""))));
    byId("problem-body").replaceChildren(textBlock(textOf(problem.prompt), "Problem"),
      make("p", "facts", "gold answer: " + (problem.gold || "–")), ...blocks);
    if (!dialog.open) {
      dialog.showModal();
      byId("close").focus();
    }
    dialog.scrollTop = 0;
    // A link to the problem.
    history.replaceState(null, "", "#problem-" + (problems.indexOf(problem) + 1));
  };
  byId("previous").addEventListener("click", () => open(opened - 1));
  byId("next").addEventListener("click", () => open(opened + 1));
  byId("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    if (event.target.tagName === "PRE") return;
    if (event.key === "ArrowLeft") open(opened - 1);
    if (event.key === "ArrowRight") open(opened + 1);
  });
  dialog.addEventListener("close", () => history.replaceState(null, "", "#pills"));
  return open;
};
