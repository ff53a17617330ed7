"""The part of the dashboard's script that knows the runs: their list, their numbers, and the beat; see `page`.

Each chosen run has its metrics as columns over steps, grown from what the server says is new. The beat asks once a
second while the page can be seen, and says so when the server does not answer.
"""

from __future__ import annotations

RUNS = r"""
  let runs = [];
  let catalogue = {};
  let isLoaded = false;
  const runOf = (id) => runs.find((run) => run.id === id);
  const nameOf = (id) => (runOf(id) || { name: id }).name;
  // The run in front first: its colour is the first.
  const chosenRuns = () => [state.run, ...state.with.filter((id) => id !== state.run)].filter(runOf);

  // A run keeps its colour for as long as it is chosen.
  const slots = new Map();
  const giveSlots = () => {
    const chosen = chosenRuns();
    for (const id of [...slots.keys()]) if (!chosen.includes(id)) slots.delete(id);
    for (const id of chosen) {
      let slot = 0;
      while ([...slots.values()].includes(slot)) slot += 1;
      if (!slots.has(id)) slots.set(id, slot);
    }
  };

  // What is known of each run: columns of metrics over its steps, its evals, its findings.
  const known = new Map();
  const dataOf = (id) => {
    if (!known.has(id)) {
      known.set(id, { cursors: {}, steps: [], stages: [], columns: new Map(), evals: [], findings: null,
        askedFindings: 0, warnings: [], version: 0 });
    }
    return known.get(id);
  };
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
  // A run that cannot be read must not keep the others from being shown.
  const orWarn = (id, asked) => asked.catch((failure) => {
    if (!(failure instanceof Refused)) throw failure;
    warn(id, failure.message);
    return null;
  });
  const advance = async (id, file) => {
    const data = dataOf(id);
    for (;;) {
      const answer = await get(runPath(id, file), { cursor: data.cursors[file] });
      // A first answer is a reset of nothing.
      if (answer.is_reset) forget(data, file);
      take(data, file, answer.lines);
      data.cursors[file] = answer.cursor;
      if (answer.is_reset || answer.lines.length) data.version += 1;
      for (const warning of answer.warnings) warn(id, warning);
      if (!answer.has_more) return;
      // A long run is drawn as far as it has come.
      showCharts();
    }
  };
  const columnOf = (data, name) => {
    const column = data.columns.get(name);
    if (!column) return null;
    while (column.length < data.steps.length) column.push(null);
    return column;
  };
  const lastOf = (data, name) => {
    const column = columnOf(data, name);
    const index = column ? lastKnown(column) : -1;
    return index < 0 ? null : column[index];
  };
  const stagesOf = (id) => (known.has(id) ? known.get(id).stages : []);
  const stepRange = () => {
    let high = 1;
    for (const id of chosenRuns()) {
      const data = dataOf(id);
      high = Math.max(high, data.steps.at(-1) || 0, data.evals.length ? data.evals.at(-1).step : 0);
    }
    return [0, high];
  };

  // The list. Rows are kept and changed in place, in the order in which they were first seen, the newest on top.
  const STATES = { running: "running", finished: "finished", stopped: "stopped", failed: "failed" };
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
  const fact = (text, className) => make("span", className || "", text);
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
    const mark = fact("", "mark");
    mark.append(make("i", "dot " + run.state), STATES[run.state] || run.state);
    const steps = run.planned_steps ? `${plain(run.step)} / ${plain(run.planned_steps)}` : `step ${plain(run.step)}`;
    const shown = [mark, fact(steps)];
    if (run.last_eval) {
      const score = fact("held-out ");
      score.append(make("b", "", percent(run.last_eval.pass_at_1)),
        ` (${interval(run.last_eval.low, run.last_eval.high, "share")})`);
      shown.push(score);
    }
    const found = known.has(run.id) ? known.get(run.id).findings : null;
    if (found && found.findings.length) {
      const isSick = found.findings.some((finding) => finding.severity === "sick");
      const count = found.findings.length;
      shown.push(fact(`${isSick ? "▲" : "△"} ${count} finding${count > 1 ? "s" : ""}`, isSick ? "sick" : ""));
    }
    const text = shown.map((element) => element.textContent + element.className).join("|") + run.state;
    if (facts.dataset.text !== text) { facts.dataset.text = text; facts.replaceChildren(...shown); }
    progress.hidden = !run.planned_steps;
    if (run.planned_steps) bar.style.width = Math.min(100, (100 * run.step) / run.planned_steps) + "%";
  };
  const showRuns = () => {
    const place = byId("run-list");
    setText(byId("run-count"), runs.length === 1 ? "1 run" : `${runs.length} runs`);
    for (const [id, parts] of rows) if (!runOf(id)) { parts.row.remove(); rows.delete(id); }
    for (const run of [...runs].reverse()) {
      showRow(run);
      const { row } = rowOf(run.id);
      if (!row.isConnected) place.prepend(row);
    }
  };

  const choose = (id) => {
    const others = state.with.includes(id) ? [state.run, ...state.with].filter((other) => other !== id) : [];
    change({ run: id, with: others.filter(Boolean), offset: "0", group: "", against: "" }, true);
    if (matchMedia("(max-width: 62rem)").matches) byId("runs").open = false;
    showAll();
    beat();
  };
  const add = (id) => {
    if (!state.run) { choose(id); return; }
    change({ with: [...state.with.filter((other) => other !== id), id] });
    showAll();
    beat();
  };
  const remove = (id) => {
    const left = [state.run, ...state.with].filter((other) => other !== id && other);
    const isFront = id === state.run;
    change({ run: left[0] || "", with: left.slice(1), ...(isFront ? { group: "", offset: "0" } : {}) });
    showAll();
  };

  // The beat: one round at a time, a second apart, none while the page is hidden.
  let isBeating = false;
  let isAgain = false;
  let timer = 0;
  let numFailures = 0;
  const beat = async () => {
    if (isBeating) { isAgain = true; return; }
    clearTimeout(timer);
    isBeating = true;
    try {
      await askAll();
      numFailures = 0;
      showServer("");
    } catch (failure) {
      numFailures += 1;
      const isGone = failure instanceof Gone;
      // A mistake of this page's own belongs in the console; the beat goes on.
      if (!isGone && !(failure instanceof Refused)) setTimeout(() => { throw failure; });
      const words = isGone ? "The server does not answer: groupwise watch was stopped, or the machine sleeps. "
        + "This is what was last read; it goes on by itself when the server is back." : failure.message;
      // One lost answer is no news.
      if (!isGone || numFailures > 1 || !isLoaded) showServer(words);
    }
    isBeating = false;
    if (isAgain) { isAgain = false; beat(); return; }
    if (!document.hidden) timer = setTimeout(beat, POLL_MS);
  };
  const showServer = (problem) => {
    byId("banner").hidden = problem === "";
    setText(byId("banner"), visible(problem));
    byId("pulse-dot").className = problem ? "dot gone" : "dot live";
    setText(byId("pulse-text"), problem ? "not live" : "live");
  };
  const askAll = async () => {
    if (!isLoaded) catalogue = (await get("catalogue")).metrics;
    const answer = await get("runs");
    // Runs that are written to at once would change places each second.
    const place = new Map(runs.map((run, index) => [run.id, index]));
    runs = answer.runs.sort((a, b) => (place.get(a.id) ?? -1) - (place.get(b.id) ?? -1));
    serverWarnings = answer.warnings;
    const isFirst = !isLoaded;
    isLoaded = true;
    if (!state.run && runs.length) change({ run: runs[0].id });
    giveSlots();
    if (isFirst) showAll();
    const chosen = chosenRuns();
    const before = chosen.map((id) => dataOf(id).version).join();
    const files = chosen.flatMap((id) => ["metrics", "evals"].map((file) => [id, file]));
    await Promise.all(files.map(([id, file]) => orWarn(id, advance(id, file))));
    await askFindings(chosen);
    if (before !== chosen.map((id) => dataOf(id).version).join()) showCharts();
    showRuns();
    showNow();
    showWarnings();
    await freshenGroups();
  };
  // At most one run a beat is examined, the chosen first, and only where it has new steps.
  const FINDINGS_EVERY_MS = 5000;
  const askFindings = async (chosen) => {
    const ids = [...chosen, ...runs.map((run) => run.id).filter((id) => !chosen.includes(id))];
    const isStale = (id) => {
      const data = dataOf(id);
      return (!data.findings || data.findings.as_of_step !== runOf(id).step)
        && Date.now() - data.askedFindings > FINDINGS_EVERY_MS;
    };
    const id = ids.find(isStale);
    if (!id) return;
    dataOf(id).askedFindings = Date.now();
    const answer = await orWarn(id, get(runPath(id, "findings")));
    if (!answer) return;
    dataOf(id).findings = answer;
    if (id === state.run) showFindings();
  };
  let serverWarnings = [];
  const showWarnings = () => {
    const texts = [...serverWarnings, ...chosenRuns().flatMap((id) => dataOf(id).warnings)];
    byId("warnings").hidden = texts.length === 0;
    setText(byId("warnings"), visible(texts.slice(0, 5).join("\n")));
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) beat(); else clearTimeout(timer); });
"""
