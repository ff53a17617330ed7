// The state of the dashboard: a flat table of strings and lists, stored in the address after "#", so that a reload or a
// shared link shows the same.

// Lists are written with commas; default values are left out.
export const DEFAULTS = {
  run: "", with: [], view: "overview", kind: "train", q: "", problem: "", verdict: "", finish: "", signal: "",
  stage: "", first_step: "", last_step: "", min_reward: "", max_reward: "", sort: "newest", offset: "0", group: "",
  colour: "ratio", order: "sampled", smooth: "0", log: "", more: [], against: "",
};
// The filters of groups, under the same names as on the server.
export const FILTERS = ["kind", "q", "problem", "verdict", "finish", "signal", "stage", "first_step", "last_step",
  "min_reward", "max_reward", "sort"];
const NUMBERS = ["first_step", "last_step", "min_reward", "max_reward", "offset", "smooth"];

export const state = structuredClone(DEFAULTS);

export const tableOf = (address) => {
  const found = new URLSearchParams(address.slice(1));
  return Object.fromEntries(Object.entries(DEFAULTS).map(([name, usual]) => {
    const isUnusable = NUMBERS.includes(name) && !Number.isFinite(Number(found.get(name)));
    const text = isUnusable ? null : found.get(name);
    return [name, Array.isArray(usual) ? (text ? text.split(",").map(decodeURIComponent) : []) : text ?? usual];
  }));
};
export const addressOf = (table) => {
  const query = new URLSearchParams();
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const value = Array.isArray(usual) ? table[name].map(encodeURIComponent).join(",") : table[name];
    if (value !== "" && value !== usual) query.set(name, value);
  }
  return "#" + query.toString();
};

export const readAddress = () => { Object.assign(state, tableOf(location.hash)); };
// `isPlace`: the back button should lead here.
export const change = (changes, isPlace) => {
  Object.assign(state, changes);
  const address = addressOf(state);
  if (address === (location.hash || "#")) return;
  if (isPlace) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
};
