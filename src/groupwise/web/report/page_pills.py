"""The part of a report's script that shows pills and, behind them, completions; see `page_script`."""

from __future__ import annotations

PILLS = r"""
  const WORDS = { correct: "correct", wrong: "wrong", none: "no answer", error: "not scored" };
  const SIGNS = { correct: "✓", wrong: "✗", none: "–", error: "!" };
  const MAX_IN_CELL = 4;
  const PAGE_SIZE = 25;
  const section = data.sections.pills;
  if (section === undefined) return;

  const rate = (cell) => {
    const judged = cell.filter((entry) => entry.kind !== "error");
    return judged.length ? judged.filter((entry) => entry.kind === "correct").length / judged.length : null;
  };
  const first = (problem) => rate(problem.cells[0]);
  const last = (problem) => rate(problem.cells[problem.cells.length - 1]);
  const several = section.models.length > 1;
  const FILTERS = several ? [
    ["All", () => true],
    ["Gained", (problem) => last(problem) > first(problem)],
    ["Lost", (problem) => last(problem) < first(problem)],
    ["Right throughout", (problem) => first(problem) === 1 && last(problem) === 1],
    ["Still wrong", (problem) => first(problem) === 0 && last(problem) === 0],
  ] : [
    ["All", () => true],
    ["Right", (problem) => last(problem) > 0],
    ["Wrong", (problem) => last(problem) === 0],
  ];

  const place = document.querySelector("[data-pills]");
  const tools = document.querySelector(".pill-tools");
  const dialog = document.getElementById("problem");
  let chosen = section.problems;
  let numShown = PAGE_SIZE;
  place.style.setProperty("--models", section.models.length);

  const pill = (entry, model, open) => {
    const answer = entry.answer || WORDS[entry.kind];
    const element = make(open ? "button" : "span", "pill " + entry.kind);
    const sign = make("span", "", SIGNS[entry.kind]);
    sign.setAttribute("aria-hidden", "true");
    element.append(sign, make("span", "", answer));
    if (open) {
      element.type = "button";
      element.setAttribute("aria-label", `${model}: ${WORDS[entry.kind]}, ${entry.answer || "no answer"}. Open.`);
      element.addEventListener("click", open);
    }
    return element;
  };

  const problemRow = (problem, index) => {
    const row = make("div", "row");
    const question = make("div");
    const gold = make("div", "gold", "gold: " + (problem.gold || "–"));
    question.append(make("div", "question-text", problem.question), gold);
    row.append(question);
    problem.cells.forEach((entries, number) => {
      const cell = make("div", "cell");
      cell.append(make("span", "model", section.models[number]));
      for (const entry of entries.slice(0, MAX_IN_CELL)) {
        cell.append(pill(entry, section.models[number], () => openProblem(index)));
      }
      if (entries.length > MAX_IN_CELL) cell.append(make("span", "gold", "+" + (entries.length - MAX_IN_CELL)));
      row.append(cell);
    });
    return row;
  };

  const showRows = () => {
    const head = make("div", "row head");
    head.append(make("div", "", "problem"), ...section.models.map((name) => make("div", "", name)));
    const rows = chosen.slice(0, numShown).map(problemRow);
    const parts = [head, ...rows];
    if (chosen.length === 0) parts.push(make("p", "dim", "No such problem."));
    place.replaceChildren(...parts);
    more.hidden = chosen.length <= numShown;
    all.hidden = more.hidden;
    more.textContent = `Show ${Math.min(PAGE_SIZE, chosen.length - numShown)} more`;
    all.textContent = `Show all ${chosen.length}`;
  };
  const moreTools = make("div", "pill-tools more");
  const more = make("button");
  const all = make("button");
  more.type = all.type = "button";
  more.addEventListener("click", () => { numShown += PAGE_SIZE; showRows(); });
  all.addEventListener("click", () => { numShown = chosen.length; showRows(); });
  moreTools.append(more, all);
  place.after(moreTools);

  for (const [name, isWanted] of FILTERS) {
    const matching = section.problems.filter(isWanted);
    const button = make("button", "", `${name} ${matching.length}`);
    button.type = "button";
    button.setAttribute("aria-pressed", String(name === "All"));
    button.addEventListener("click", () => {
      for (const other of tools.children) other.setAttribute("aria-pressed", String(other === button));
      chosen = matching;
      numShown = PAGE_SIZE;
      showRows();
    });
    tools.append(button);
  }

  const textBlock = (number, label) => {
    if (number === null) return make("p", "dim", "Left out to keep this page small; it is in the run directory.");
    const block = make("pre", "", data.texts[number]);
    block.tabIndex = 0;
    block.setAttribute("aria-label", label);
    return block;
  };
  const completionBlock = (entry, label) => {
    const block = make("div", "completion");
    const heading = make("h4", "", label);
    heading.append(pill(entry, label, null));
    const facts = [`reward ${plain(entry.reward)}`, `${entry.tokens} tokens`, `ended by ${entry.finish}`];
    if (entry.detail) facts.push(`verifier: ${entry.detail}`);
    block.append(heading, textBlock(entry.text, "Completion"), make("p", "facts", facts.join(" · ")));
    return block;
  };
  let opened = 0;
  const openProblem = (index) => {
    opened = (index + chosen.length) % chosen.length;
    const problem = chosen[opened];
    document.getElementById("problem-title").textContent = `${problem.id} · ${opened + 1} of ${chosen.length}`;
    const blocks = problem.cells.flatMap((entries, number) => entries.map((entry, rollout) =>
      completionBlock(entry, section.models[number] + (entries.length > 1 ? `, completion ${rollout + 1}` : ""))));
    document.getElementById("problem-body").replaceChildren(
      textBlock(problem.prompt, "Problem"), make("p", "facts", "gold answer: " + (problem.gold || "–")), ...blocks);
    if (!dialog.open) {
      dialog.showModal();
      document.getElementById("close").focus();
    }
    dialog.scrollTop = 0;
    // So that a problem can be linked to.
    history.replaceState(null, "", "#problem-" + (section.problems.indexOf(problem) + 1));
  };
  document.getElementById("previous").addEventListener("click", () => openProblem(opened - 1));
  document.getElementById("next").addEventListener("click", () => openProblem(opened + 1));
  document.getElementById("close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    if (event.target.tagName === "PRE") return;
    if (event.key === "ArrowLeft") openProblem(opened - 1);
    if (event.key === "ArrowRight") openProblem(opened + 1);
  });
  dialog.addEventListener("close", () => history.replaceState(null, "", "#pills"));
  showRows();
  const linked = /^#problem-(\d+)$/.exec(location.hash);
  if (linked && section.problems[linked[1] - 1]) openProblem(linked[1] - 1);
})();
"""
