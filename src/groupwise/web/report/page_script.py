"""The script of a report: a constant without placeholders, since the page's content policy names its hash.

It reads the page's data, draws charts as SVG, rows of pills and the dialog behind them. Whatever it shows goes through
`textContent` and attributes of our own; there is no way in it from text to markup.
"""

from __future__ import annotations

from groupwise.web.report.page_charts import CHARTS
from groupwise.web.report.page_pills import PILLS

_OPENING = r"""
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const NAMESPACE = "http://www.w3.org/2000/svg";
  const NUM_COLOURS = 8;
"""

# Elements and numbers, with nothing of a report in it: other pages of ours use it as it is.
ELEMENTS = r"""
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const draw = (tag, attributes, text) => {
    const element = document.createElementNS(NAMESPACE, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const plain = (value) => {
    if (!isNumber(value)) return "–";
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size >= 1e12) return value.toExponential(2).replace(/\.?0*e\+/, "e");
    if (size >= 1e9) return Number((value / 1e9).toPrecision(3)) + " G";
    if (size >= 1e6) return Number((value / 1e6).toPrecision(3)) + " M";
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    if (size < 1e-3) return value.toExponential(1);
    return String(Number(value.toPrecision(3)));
  };
  const percent = (value) => {
    const scaled = 100 * value;
    // Ticks below 1 % are closer to each other than one decimal tells.
    return Number(Math.abs(scaled) < 1 ? scaled.toPrecision(2) : scaled.toFixed(1)) + " %";
  };
  const format = (value, unit) => {
    if (!isNumber(value)) return "–";
    if (unit === "share") return percent(value);
    return plain(value) + (unit ? " " + unit : "");
  };
  const short = (value, unit) => (unit === "share" ? percent(value) : plain(value));
"""

_TEXTS_AND_THEME = r"""
  const showText = (slot) => {
    if (slot.textContent === "") slot.textContent = data.texts[Number(slot.dataset.text)];
  };
  for (const slot of document.querySelectorAll("pre[data-text]")) {
    const fold = slot.closest("details");
    if (fold === null) showText(slot);
    else fold.addEventListener("toggle", () => showText(slot));
  }
  // On paper nothing can be opened.
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details")) fold.open = true;
  });

  const theme = document.getElementById("theme");
  const root = document.documentElement;
  let isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const nameTheme = () => { theme.textContent = isDark ? "Light" : "Dark"; };
  theme.setAttribute("aria-label", "Switch between light and dark");
  theme.addEventListener("click", () => {
    isDark = !isDark;
    root.style.colorScheme = isDark ? "dark" : "light";
    nameTheme();
  });
  theme.hidden = false;
  nameTheme();
"""

SCRIPT = _OPENING + ELEMENTS + _TEXTS_AND_THEME + CHARTS + PILLS
