// The page of `groupwise watch`: the views, and the beat that asks the server what is new.
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
const VIEWS = ["overview", "groups", "recipe"];

// Show everything that the address says.
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
    nothing.replaceChildren(watched.runs.length ? emptyState("No run is chosen.", state.run
      ? "The run of this link is not among those that this server watches. Choose one on the left."
      : "Choose one on the left.")
      : emptyState("No runs yet.", "Start one with groupwise train RECIPE; it appears here by itself."));
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
// Back, forward, or a link pasted into the same page.
const arrive = () => {
  readAddress();
  showAll();
};
addEventListener("popstate", arrive);

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
  if (!watched.isLoaded) watched.catalogue = (await get("catalogue")).metrics;
  const answer = await get("runs");
  // Runs that are written to at once would change places each second.
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

// At most one run a beat is examined, the chosen first, and only where it has new steps.
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
  const texts = [...watched.warnings, ...chosenRuns().flatMap((id) => dataOf(id).warnings)];
  byId("warnings").hidden = texts.length === 0;
  setText(byId("warnings"), visible(texts.slice(0, 5).join("\n")));
};

listen("curves grew", showCharts);
listen("runs chosen", () => { showAll(); beat(); });
followTheme(byId("theme"));
byId("runs").open = !matchMedia("(max-width: 62rem)").matches;
readAddress();
showTools();
beat();
document.addEventListener("visibilitychange", () => { if (!document.hidden) beat(); else clearTimeout(timer); });
