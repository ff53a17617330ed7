// The page for labelling chains: reads the page through attributes and stores labels in the browser.
import { byId, readData } from "./dom.js";
import { isLabelled, takeLabels, timeAfter } from "./labels.js";
import { many } from "./numbers.js";

const data = readData();
const storageKey = "groupwise-audit:" + data.run;
const articles = [...document.querySelectorAll("article")];
const known = new Set(articles.map((article) => article.dataset.chain));
const message = byId("message");
const filter = byId("filter");
const labels = new Map();

const stored = () => {
  try {
    const entries = JSON.parse(localStorage.getItem(storageKey) || "[]");
    return Array.isArray(entries) ? entries : [];
  } catch {
    return [];
  }
};
const save = () => {
  // Another tab may have added labels meanwhile.
  takeLabels(labels, stored());
  try {
    localStorage.setItem(storageKey, JSON.stringify([...labels.values()]));
  } catch {
    message.textContent = "This browser does not store labels: export them before you close the page.";
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
  article.classList.toggle("done", isLabelled(label));
};
const showProgress = () => {
  const done = articles.filter((article) => isLabelled(labels.get(article.dataset.chain))).length;
  byId("progress").textContent = done + " of " + articles.length + " labelled";
};
const applyFilter = () => {
  for (const article of articles) {
    const wanted = filter.value;
    const done = isLabelled(labels.get(article.dataset.chain));
    article.hidden = wanted === "unlabelled" ? done : wanted !== "all" && article.dataset.verdict !== wanted;
  }
};
const showAll = () => { articles.forEach(show); showProgress(); };

const change = (article, key, value) => {
  const chain = article.dataset.chain;
  const old = labels.get(chain) || { chain, verdict: null, reasoning: null, note: "", time: "" };
  labels.set(chain, { ...old, [key]: value, time: timeAfter(old.time, Date.now()) });
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

byId("export").addEventListener("click", () => {
  const kept = [...labels.values()].filter((label) => known.has(label.chain));
  const text = JSON.stringify({ format: data.format, run: data.run, labels: kept }, null, 1);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "labels-" + data.run.replace(/[^A-Za-z0-9._-]/g, "_") + ".json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  message.textContent = `Exported ${many(kept.length, "label")} as ${link.download}.`;
});
byId("import").addEventListener("change", async (event) => {
  const file = event.target.files[0];
  if (file === undefined) return;
  try {
    const table = JSON.parse(await file.text());
    if (table.format !== data.format) throw new Error("it is not a label file");
    if (table.run !== data.run) throw new Error("its labels belong to the run " + table.run);
    const taken = takeLabels(labels, table.labels);
    save();
    showAll();
    message.textContent = `Imported ${many(taken, "newer label")} of ${table.labels.length}.`;
  } catch (error) {
    message.textContent = "Could not import " + file.name + ": " + error.message;
  }
  event.target.value = "";
});

takeLabels(labels, Object.values(data.labels));
takeLabels(labels, stored());
showAll();
