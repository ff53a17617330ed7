// The page of `groupwise watch`: the views, and the loop that asks the server for news.
import { change, readAddress, state } from "./address.js";
import { byId, emptyState, setText } from "./dom.js";
import { closeUnlessWanted, freshenGroups } from "./group.js";
import { fillFilters } from "./group-list.js";
import { listen } from "./hub.js";
import { showFindings, showNow } from "./overview.js";
import { showRecipe } from "./recipe.js";
import { showRuns } from "./run-list.js";
import { advance, chosenRuns, dataOf, giveSlots, orWarn, runOf, watched } from "./runs.js";
import { get, Gone, Refused, runPath, unlessGone } from "./server.js";
import { followTheme } from "./theme.js";
import { visible } from "./visible.js";
import { showCharts, showTools } from "./watched-curves.js";

const POLL_MS = 1000;
const MAX_WARNINGS = 8;
const VIEWS = ["overview", "groups", "recipe"];

// Show the state in the address.
const showAll = () => {
  if (!VIEWS.includes(state.view)) change({ view: "overview" });
  giveSlots();
  const hasRun = runOf(state.run) !== undefined;
  for (const tab of document.querySelectorAll("[data-view]")) {
    tab.setAttribute("aria-selected", String(tab.dataset.view === state.view));
    tab.tabIndex = tab.dataset.view === state.view ? 0 : -1;
    byId(tab.dataset.view).hidden = tab.dataset.view !== state.view || !hasRun;
  }
  const nothing = byId("nothing");
  nothing.hidden = hasRun || !watched.isLoaded;
  if (!hasRun && watched.isLoaded) {
    nothing.replaceChildren(watched.runs.length ? emptyState("No run is selected.", state.run
      ? "The run in this link is not among those that this server watches. Select one from the list of runs."
      : "Select one from the list of runs.")
      : emptyState("No runs yet.", "Start one with groupwise train RECIPE; it will appear here."));
  }
  showRuns();
  showTools();
  fillFilters();
  showNow();
  showFindings();
  showCharts();
  showRecipe().catch(unlessGone);
  closeUnlessWanted();
  if (watched.isLoaded) freshenGroups().catch(unlessGone);
};

const tabs = [...document.querySelectorAll("[data-view]")];
for (const tab of tabs) {
  tab.addEventListener("click", () => {
    change({ view: tab.dataset.view, group: "" }, true);
    showAll();
  });
  tab.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    const next = tabs[(tabs.indexOf(tab) + by + tabs.length) % tabs.length];
    next.focus();
    next.click();
  });
}
// Back, forward, or another link opened in the same page.
const arrive = () => {
  readAddress();
  showAll();
};
addEventListener("popstate", arrive);

// The polling loop: one round at a time, a second apart, none while the page is hidden.
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
    // An error of this page belongs in the console; polling continues.
    if (!isGone && !(failure instanceof Refused)) setTimeout(() => { throw failure; });
    const words = isGone ? "The server does not answer: groupwise watch was stopped, or the machine is asleep. "
      + "The page shows the last data and continues when the server is back." : failure.message;
    // A single lost answer is not reported.
    if (!isGone || numFailures > 1 || !watched.isLoaded) showServer(words);
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
  if (!watched.isLoaded) {
    const { metrics, charts } = await get("catalogue");
    Object.assign(watched, { catalogue: metrics, charts });
  }
  const answer = await get("runs");
  // Runs that are written at the same time would change places every second.
  const place = new Map(watched.runs.map((run, index) => [run.id, index]));
  const runs = answer.runs.sort((a, b) => (place.get(a.id) ?? -1) - (place.get(b.id) ?? -1));
  const isFirst = !watched.isLoaded;
  Object.assign(watched, { runs, warnings: answer.warnings, isLoaded: true });
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

// At most one run per round is examined, selected runs first, and only those with new steps.
const FINDINGS_EVERY_MS = 5000;
const askFindings = async (chosen) => {
  const ids = [...chosen, ...watched.runs.map((run) => run.id).filter((id) => !chosen.includes(id))];
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
const showWarnings = () => {
  const ofRuns = chosenRuns().flatMap((id) => [...runOf(id).errors, ...dataOf(id).warnings]);
  const texts = [...new Set([...watched.warnings, ...ofRuns])];
  byId("warnings").hidden = texts.length === 0;
  const more = texts.length > MAX_WARNINGS ? [`… and ${texts.length - MAX_WARNINGS} more`] : [];
  setText(byId("warnings"), visible([...texts.slice(0, MAX_WARNINGS), ...more].join("\n")));
};

listen("curves grew", showCharts);
listen("runs chosen", () => { showAll(); beat(); });
followTheme(byId("theme"));
byId("runs").open = !matchMedia("(max-width: 62rem)").matches;
readAddress();
showTools();
beat();
document.addEventListener("visibilitychange", () => { if (!document.hidden) beat(); else clearTimeout(timer); });
