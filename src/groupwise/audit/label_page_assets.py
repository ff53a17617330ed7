"""The style and the script of the labelling page, kept apart from the text that fills it.

They are constants without any placeholder: the page's content policy names their hashes, and no text of a model is ever
put into them. The script reads the page through attributes and writes through `textContent` and `value` alone.
"""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #fff; --ink: #1c2026; --dim: #5b6470; --line: #d5dae1; --accent: #2456b8; --field: #f1f3f6;
  --good: #14713a; --bad: #b3261e; --mixed: #7a5a00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171b; --card: #1d2127; --ink: #e6e9ee; --dim: #a0a9b5; --line: #39414c; --accent: #8ab4ff;
    --field: #15181d; --good: #6fd597; --bad: #ff9a92; --mixed: #e6c35c;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 0; display: flex; gap: .75rem; flex-wrap: wrap; align-items: baseline; }
h3 { font-size: .8rem; margin: .9rem 0 .25rem; color: var(--dim); font-weight: 600; }
header p, .place, footer { color: var(--dim); margin: .25rem 0 0; font-size: .875rem; overflow-wrap: anywhere; }
footer { margin: 2rem 0; }
.findings, article { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: 1rem;
  margin: 1rem 0; }
.findings > summary { font-weight: 600; cursor: pointer; }
.findings ul { margin: .25rem 0; padding-left: 1.1rem; font-size: .8rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; margin-top: .5rem; }
th, td { text-align: left; padding: .3rem .5rem; border-top: 1px solid var(--line); vertical-align: top;
  min-width: 4rem; }
.findings p { font-size: .875rem; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
tr.none { color: var(--dim); }
code, pre { font-family: ui-monospace, monospace; overflow-wrap: anywhere; white-space: pre-wrap; }
pre { margin: 0; padding: .6rem .75rem; background: var(--field); border: 1px solid var(--line); border-radius: .375rem;
  font-size: .875rem; max-height: 26rem; overflow: auto; }
pre.prompt { max-height: 12rem; }
.bar { position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; gap: .5rem .75rem; align-items: center;
  padding: .6rem 0; background: var(--page); border-bottom: 1px solid var(--line); font-size: .875rem; }
#progress { font-weight: 600; margin-right: auto; }
#message:empty { display: none; }
#message { flex-basis: 100%; }
button, .button, select { font: inherit; color: var(--ink); background: var(--card); border: 1px solid var(--line);
  border-radius: .375rem; padding: .35rem .75rem; cursor: pointer; min-height: 2.25rem; }
.button { display: inline-flex; align-items: center; }
.button input { position: absolute; width: 1px; height: 1px; opacity: 0; }
button:hover, .button:hover { border-color: var(--accent); }
:focus-visible, .button:focus-within { outline: 2px solid var(--accent); outline-offset: 1px; }
button[aria-pressed="true"] { background: var(--accent); border-color: var(--accent); color: var(--card);
  font-weight: 600; }
fieldset { border: 0; margin: .9rem 0 0; padding: 0; }
legend, .note { font-weight: 600; font-size: .9rem; padding: 0; }
.answers { display: grid; grid-template-columns: repeat(3, minmax(0, 9rem)); gap: .5rem; margin-top: .25rem; }
.note { display: block; margin-top: .9rem; }
textarea { display: block; width: 100%; margin-top: .25rem; font: inherit; font-weight: 400; color: var(--ink);
  background: var(--field); border: 1px solid var(--line); border-radius: .375rem; padding: .4rem .6rem;
  resize: vertical; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .15rem .75rem; margin: .9rem 0 0;
  font-size: .875rem; }
dt { color: var(--dim); }
dd { margin: 0; overflow-wrap: anywhere; }
.count { color: var(--dim); font-weight: 400; }
.reward { font-weight: 400; }
.correct { color: var(--good); } .wrong { color: var(--bad); }
.unparsed, .error, .timed_out { color: var(--mixed); }
article.done { border-color: var(--accent); }
[hidden] { display: none !important; }
td:last-child { white-space: nowrap; }
@media (max-width: 40rem) {
  body { padding: .6rem; }
  .findings, article { padding: .75rem; }
  thead { display: none; }
  tbody tr { display: grid; grid-template-columns: auto auto 1fr; gap: 0 .6rem; padding: .4rem 0;
    border-top: 1px solid var(--line); }
  td { border: 0; padding: 0; min-width: 0; }
  td:first-child, td:nth-child(3) { grid-column: 1 / -1; }
  td:first-child { font-weight: 600; }
  td:first-child ul { font-weight: 400; }
  td:nth-child(3) { order: 1; color: var(--dim); }
}
"""

SCRIPT = r"""
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const storageKey = "groupwise-audit:" + data.run;
  const articles = [...document.querySelectorAll("article")];
  const known = new Set(articles.map((article) => article.dataset.chain));
  const message = document.getElementById("message");
  const filter = document.getElementById("filter");
  const answers = new Set(["right", "wrong", "unsure"]);
  const labels = new Map();

  const clean = (entry) => {
    if (entry === null || typeof entry !== "object" || typeof entry.chain !== "string") return null;
    if (Number.isNaN(Date.parse(entry.time))) return null;
    const answer = (value) => (answers.has(value) ? value : null);
    const note = typeof entry.note === "string" ? entry.note.slice(0, 10000) : "";
    return { chain: entry.chain, verdict: answer(entry.verdict), reasoning: answer(entry.reasoning), note,
             time: new Date(entry.time).toISOString() };
  };
  const take = (entries) => {
    let taken = 0;
    for (const entry of entries) {
      const label = clean(entry);
      if (label === null) continue;
      const old = labels.get(label.chain);
      if (old === undefined || Date.parse(label.time) > Date.parse(old.time)) {
        labels.set(label.chain, label);
        taken += 1;
      }
    }
    return taken;
  };
  const isDone = (label) => label !== undefined && (label.verdict !== null || label.reasoning !== null);

  const stored = () => {
    try {
      const entries = JSON.parse(localStorage.getItem(storageKey) || "[]");
      return Array.isArray(entries) ? entries : [];
    } catch (error) {
      return [];
    }
  };
  const save = () => {
    // Another tab may have labelled in the meantime.
    take(stored());
    try {
      localStorage.setItem(storageKey, JSON.stringify([...labels.values()]));
    } catch (error) {
      message.textContent = "This browser does not keep the labels: export them before you close the page.";
    }
  };

  const show = (article) => {
    const label = labels.get(article.dataset.chain);
    for (const button of article.querySelectorAll("button[data-answer]")) {
      const pressed = label !== undefined && label[button.dataset.question] === button.dataset.answer;
      button.setAttribute("aria-pressed", String(pressed));
    }
    const note = article.querySelector("textarea");
    const text = label === undefined ? "" : label.note;
    if (note.value !== text) note.value = text;
    article.classList.toggle("done", isDone(label));
  };
  const showProgress = () => {
    const done = articles.filter((article) => isDone(labels.get(article.dataset.chain))).length;
    document.getElementById("progress").textContent = done + " of " + articles.length + " labelled";
  };
  const applyFilter = () => {
    for (const article of articles) {
      const wanted = filter.value;
      const done = isDone(labels.get(article.dataset.chain));
      article.hidden = wanted === "unlabelled" ? done : wanted !== "all" && article.dataset.verdict !== wanted;
    }
  };
  const showAll = () => { articles.forEach(show); showProgress(); };

  const change = (article, key, value) => {
    const chain = article.dataset.chain;
    const old = labels.get(chain) || { chain, verdict: null, reasoning: null, note: "", time: "" };
    // Later than what it replaces, even where that came from a clock ahead of this one.
    const after = old.time === "" ? 0 : Date.parse(old.time) + 1;
    const time = new Date(Math.max(Date.now(), after)).toISOString();
    labels.set(chain, { ...old, [key]: value, time });
    save();
    show(article);
    showProgress();
  };

  document.querySelector("main").addEventListener("click", (event) => {
    const button = event.target.closest("button[data-answer]");
    if (button === null) return;
    const pressed = button.getAttribute("aria-pressed") === "true";
    change(button.closest("article"), button.dataset.question, pressed ? null : button.dataset.answer);
  });
  document.querySelector("main").addEventListener("input", (event) => {
    if (event.target.matches("textarea")) change(event.target.closest("article"), "note", event.target.value);
  });
  filter.addEventListener("change", applyFilter);

  document.getElementById("export").addEventListener("click", () => {
    const kept = [...labels.values()].filter((label) => known.has(label.chain));
    const text = JSON.stringify({ format: data.format, run: data.run, labels: kept }, null, 1);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = "labels-" + data.run.replace(/[^A-Za-z0-9._-]/g, "_") + ".json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    message.textContent = "Exported " + kept.length + " labels as " + link.download + ".";
  });
  document.getElementById("import").addEventListener("change", async (event) => {
    const file = event.target.files[0];
    if (file === undefined) return;
    try {
      const table = JSON.parse(await file.text());
      if (table.format !== data.format) throw new Error("it is not a file of labels");
      if (table.run !== data.run) throw new Error("its labels are of the run " + table.run);
      const taken = take(table.labels);
      save();
      showAll();
      message.textContent = "Took " + taken + " newer labels of " + table.labels.length + ".";
    } catch (error) {
      message.textContent = "Could not import " + file.name + ": " + error.message;
    }
    event.target.value = "";
  });

  take(Object.values(data.labels));
  take(stored());
  showAll();
})();
"""
