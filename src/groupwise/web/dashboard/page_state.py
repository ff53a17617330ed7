"""The part of the dashboard's script that everything else stands on: text, the server, the address; see `page`.

The state of the page is one flat table of strings and lists that is written into the address after "#" and read back
from it, so that a reload or a shared link shows the same.
"""

from __future__ import annotations

STATE = r"""
  const POLL_MS = 1000;
  const byId = (id) => document.getElementById(id);

  // The same as `groupwise.base.harmless.visible`: what a reader would not see is shown as its code point.
  const UNSEEN = new RegExp("[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u200b-\\u200f\\u2028-\\u202e"
    + "\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]"
    + "|[\\ud800-\\udbff](?![\\udc00-\\udfff])|(?<![\\ud800-\\udbff])[\\udc00-\\udfff]", "g");
  const visible = (text) => String(text).replace(/\r\n/g, "\n").replace(UNSEEN,
    (mark) => "\u27e8U+" + mark.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0") + "\u27e9");

  const button = (text, act, className) => {
    const element = make("button", className || "", text);
    element.type = "button";
    element.addEventListener("click", act);
    return element;
  };
  const emptyState = (title, sentence) => {
    const element = make("div", "empty");
    element.append(make("b", "", title), make("p", "", sentence));
    return element;
  };
  const setText = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  const seconds = (value) => {
    if (!isNumber(value)) return "–";
    if (value >= 5400) return (value / 3600).toFixed(1) + " h";
    if (value >= 90) return Math.round(value / 60) + " min";
    return (value >= 10 ? Math.round(value) : Number(value.toPrecision(2))) + " s";
  };
  const size = (value) => {
    const names = ["B", "kB", "MB", "GB", "TB"];
    let power = 0;
    while (Math.abs(value) >= 1000 && power < names.length - 1) { value /= 1000; power += 1; }
    return Number(value.toPrecision(3)) + " " + names[power];
  };
  const count = (value) => value.toLocaleString("en");
  const many = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
  const sayValue = (value, unit) => {
    const isGiga = isNumber(value) && Math.abs(value) >= 1e9 && Math.abs(value) < 1e12;
    if (isGiga && unit !== "bytes") return (value / 1e9).toPrecision(3) + " G";
    if (unit === "bytes" && isNumber(value)) return size(value);
    if (unit === "s") return seconds(value);
    return format(value, unit === "count" ? "" : unit);
  };
  const interval = (low, high, unit) => (unit === "share" ? `${percent(low).slice(0, -2)} to ${percent(high)}`
    : `${short(low, unit)} to ${short(high, unit)}`);
  const sayTick = (value, unit) => (unit === "bytes" ? size(value) : short(value, unit));

  // The server.
  class Refused extends Error {}
  class Gone extends Error {}
  const get = async (path, parameters) => {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(parameters || {})) {
      for (const one of Array.isArray(value) ? value : [value]) {
        if (one !== "" && one !== null && one !== undefined) query.append(name, one);
      }
    }
    const text = query.toString();
    let answer;
    let table;
    try {
      answer = await fetch("/api/" + path + (text ? "?" + text : ""), { cache: "no-store" });
      table = await answer.json();
    } catch (failure) { throw new Gone(failure.message); }
    if (!answer.ok) throw new Refused(table.error || "the server answered " + answer.status);
    return table;
  };
  // For what a click asks for: the beat will say that the server is gone.
  const unlessGone = (failure) => { if (!(failure instanceof Gone)) throw failure; };
  const runPath = (id, what) => "runs/" + encodeURIComponent(id) + "/" + what;

  // The address. A list is written with commas; what has its default is left out.
  const DEFAULTS = {
    run: "", with: [], view: "overview", kind: "train", q: "", problem: "", verdict: "", finish: "", signal: "",
    stage: "", first_step: "", last_step: "", min_reward: "", max_reward: "", sort: "newest", offset: "0", group: "",
    colour: "ratio", order: "sampled", smooth: "0", log: "", more: [], against: "",
  };
  const state = structuredClone(DEFAULTS);
  const NUMBERS = ["first_step", "last_step", "min_reward", "max_reward", "offset", "smooth"];
  const readAddress = () => {
    const found = new URLSearchParams(location.hash.slice(1));
    for (const [name, usual] of Object.entries(DEFAULTS)) {
      const isUnusable = NUMBERS.includes(name) && !Number.isFinite(Number(found.get(name)));
      const text = isUnusable ? null : found.get(name);
      state[name] = Array.isArray(usual) ? (text ? text.split(",").map(decodeURIComponent) : []) : text ?? usual;
    }
  };
  const addressOf = (table) => {
    const query = new URLSearchParams();
    for (const [name, usual] of Object.entries(DEFAULTS)) {
      const value = Array.isArray(usual) ? table[name].map(encodeURIComponent).join(",") : table[name];
      if (value !== "" && value !== usual) query.set(name, value);
    }
    return "#" + query.toString();
  };
  // `isPlace`: somewhere the back button should lead.
  const change = (changes, isPlace) => {
    Object.assign(state, changes);
    const address = addressOf(state);
    if (address === (location.hash || "#")) return;
    if (isPlace) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
  };

  // Light or dark: as the system, until someone says otherwise. A browser may forbid that this is kept.
  const theme = byId("theme");
  const kept = { get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
    set: (name) => { try { localStorage.setItem("theme", name); } catch { /* then it lasts for this visit */ } } };
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosenTheme = kept.get();
  const isDark = () => (chosenTheme ? chosenTheme === "dark" : system.matches);
  const showTheme = () => {
    document.documentElement.style.colorScheme = chosenTheme || "";
    theme.textContent = isDark() ? "Light" : "Dark";
  };
  theme.addEventListener("click", () => {
    chosenTheme = isDark() ? "light" : "dark";
    kept.set(chosenTheme);
    showTheme();
  });
  system.addEventListener("change", showTheme);
  showTheme();
"""
