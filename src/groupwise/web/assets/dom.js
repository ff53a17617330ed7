// Elements. Text is set only through textContent, so that it never becomes markup.

import { visible } from "./visible.js";

const NAMESPACE = "http://www.w3.org/2000/svg";

export const byId = (id) => {
  const element = document.getElementById(id);
  if (element === null) throw new Error("the page has no #" + id);
  return element;
};

export const make = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};

// A paragraph with a capital letter and a full stop; text between backticks is code.
export const sentence = (text, className) => {
  const shown = visible(text[0].toUpperCase() + text.slice(1) + (/[.:?!]$/.test(text) ? "" : "."));
  const element = make("p", className);
  element.append(...shown.split("`").map((part, index) => (index % 2 ? make("code", "", part) : part)));
  return element;
};

export const draw = (tag, attributes, text) => {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
};

export const button = (text, act, className) => {
  const element = make("button", className || "", text);
  element.type = "button";
  element.addEventListener("click", act);
  return element;
};

export const copyButton = (text) => {
  const copy = button("Copy", async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = "Copied";
  });
  return copy;
};

// The text in place of an empty list.
export const emptyState = (title, sentence) => {
  const element = make("div", "empty");
  element.append(make("b", "", title), make("p", "", sentence));
  return element;
};

export const optionOf = (value, words) => {
  const option = make("option", "", words);
  option.value = value;
  return option;
};

export const setText = (element, text) => { if (element.textContent !== text) element.textContent = text; };

// Colours of the palette by name, "0" to "7" or "q0" to "q8". Painted elements draw in --c.
export const NUM_COLOURS = 8;
export const colourOf = (name) => `var(--${/^\d+$/.test(name) ? "s" + (name % NUM_COLOURS) : name})`;
export const paint = (element, colour) => {
  element.style.setProperty("--c", colour);
  return element;
};

// The data in the page's inert block of JSON.
export const readData = () => JSON.parse(byId("data").textContent);
