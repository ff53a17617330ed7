"""The part of the dashboard's script that shows a recipe and how another run's differs, and that begins; see `page`."""

from __future__ import annotations

RECIPE = r"""
  const sayKey = (value) => (value === null ? "not set" : visible(JSON.stringify(value)));
  let recipeAsked = "";
  const showRecipe = async () => {
    const run = runOf(state.run);
    if (!run || state.view !== "recipe") return;
    const others = runs.filter((other) => other.id !== run.id);
    const select = byId("against");
    const wanted = ["", ...others.map((other) => other.id)];
    if ([...select.options].map((option) => option.value).join() !== wanted.join()) {
      select.replaceChildren(...wanted.map((id) => {
        const option = make("option", "", id ? visible(nameOf(id)) : others.length ? "no run" : "no other run yet");
        option.value = id;
        return option;
      }));
    }
    select.value = wanted.includes(state.against) ? state.against : "";
    const stamp = run.id + "|" + select.value;
    if (recipeAsked === stamp) return;
    recipeAsked = stamp;
    try {
      const answer = await get(runPath(run.id, "recipe"), { against: select.value });
      if (recipeAsked === stamp) drawRecipe(answer);
    } catch (failure) {
      recipeAsked = "";
      if (!(failure instanceof Refused)) throw failure;
      byId("recipe-body").replaceChildren(emptyState("The recipe cannot be shown.", visible(failure.message)));
    }
  };
  const drawRecipe = (answer) => {
    const parts = [];
    if (answer.against) parts.push(differenceOf(answer));
    const facts = [["fingerprint", answer.fingerprint], ["verifier", answer.verifier],
      ...Object.entries((answer.info || {}).versions || {}), ...Object.entries((answer.info || {}).machine || {})];
    const list = make("dl", "facts");
    for (const [name, value] of facts) {
      if (value === null || value === undefined || value === "") continue;
      const entry = make("div");
      const text = isNumber(value) ? count(value) : typeof value === "string" ? value : JSON.stringify(value);
      entry.append(make("dt", "", visible(name).replaceAll("_", " ")), make("dd", "", visible(text)));
      list.append(entry);
    }
    const text = make("pre", "recipe-text", visible(answer.text || ""));
    text.tabIndex = 0;
    text.setAttribute("aria-label", "Recipe");
    const tools = make("div", "tools");
    const copy = button("Copy", async () => {
      await navigator.clipboard.writeText(answer.text);
      copy.textContent = "Copied";
    });
    tools.append(make("h2", "", "recipe.toml"), copy);
    parts.push(tools, text, list);
    byId("recipe-body").replaceChildren(...parts);
  };
  const differenceOf = (answer) => {
    const place = make("div", "card");
    const keys = Object.entries(answer.difference);
    const isSame = answer.has_same_fingerprint;
    place.append(make("h2", "", keys.length === 1 ? "1 key differs" : `${keys.length || "No"} keys differ`));
    if (isSame !== null) {
      place.append(make("p", "dim", isSame ? "The fingerprints are the same: both mean the same experiment."
        : "The fingerprints differ: these are two experiments."));
    }
    if (!keys.length) return place;
    const table = make("table", "difference");
    const head = make("thead");
    const titles = make("tr");
    const names = [nameOf(answer.id), nameOf(answer.against.id)].map(visible);
    titles.append(...["key", ...names].map((name) => make("th", "", name)));
    head.append(titles);
    const body = make("tbody");
    for (const [key, [here, there]] of keys) {
      const row = make("tr");
      const name = make("th");
      name.scope = "row";
      name.append(make("code", "", visible(key)));
      row.append(name, ...[here, there].map((value, number) => {
        const cell = make("td", value === null ? "unset" : "");
        cell.dataset.run = names[number];
        cell.append(make("code", "", sayKey(value)));
        return cell;
      }));
      body.append(row);
    }
    table.append(head, body);
    place.append(table);
    return place;
  };
  byId("against").addEventListener("change", () => {
    change({ against: byId("against").value });
    showRecipe().catch(unlessGone);
  });

  // Everything that the address says.
  const VIEWS = ["overview", "groups", "recipe"];
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
    nothing.hidden = hasRun || !isLoaded;
    if (!hasRun && isLoaded) {
      nothing.replaceChildren(runs.length ? emptyState("No run is chosen.", state.run
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
    if (!state.group && dialog.open) closeGroup();
    if (isLoaded) freshenGroups().catch(unlessGone);
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
    const drawn = state.more.join();
    readAddress();
    if (isBuilt && drawn !== state.more.join()) buildCharts();
    showAll();
  };
  addEventListener("popstate", arrive);
  byId("runs").open = !matchMedia("(max-width: 62rem)").matches;
  readAddress();
  showTools();
  beat();
"""
