// The recipe of a run, and its differences from another run's.
import { change, state } from "./address.js";
import { byId, copyButton, emptyState, make, optionOf } from "./dom.js";
import { count, isNumber } from "./numbers.js";
import { nameOf, runOf, watched } from "./runs.js";
import { get, Refused, runPath, unlessGone } from "./server.js";
import { visible } from "./visible.js";

const sayKey = (value) => (value === null ? "not set" : visible(JSON.stringify(value)));
let recipeAsked = "";
export const showRecipe = async () => {
  const run = runOf(state.run);
  if (!run || state.view !== "recipe") return;
  const others = watched.runs.filter((other) => other.id !== run.id);
  const select = byId("against");
  const wanted = ["", ...others.map((other) => other.id)];
  if ([...select.options].map((option) => option.value).join() !== wanted.join()) {
    const nothing = others.length ? "no other run" : "no other run yet";
    select.replaceChildren(...wanted.map((id) => optionOf(id, id ? visible(nameOf(id)) : nothing)));
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
    const label = visible(name).replace(/^num_/, "number of ").replaceAll("_", " ");
    entry.append(make("dt", "", label), make("dd", "", visible(text)));
    list.append(entry);
  }
  const text = make("pre", "recipe-text", visible(answer.text || ""));
  text.tabIndex = 0;
  text.setAttribute("aria-label", "Recipe");
  const tools = make("div", "tools");
  tools.append(make("h2", "", "recipe.toml"), copyButton(answer.text));
  parts.push(tools, text, list);
  byId("recipe-body").replaceChildren(...parts);
};
const differenceOf = (answer) => {
  const place = make("div", "card");
  const keys = Object.entries(answer.difference);
  const isSame = answer.has_same_fingerprint;
  place.append(make("h2", "", keys.length === 1 ? "1 key differs" : `${keys.length || "No"} keys differ`));
  if (isSame !== null) {
    place.append(make("p", "dim", isSame ? "Equal fingerprints: both recipes are the same experiment."
      : "Different fingerprints: these are two different experiments."));
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
