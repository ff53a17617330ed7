// A completion, token by token if the run recorded them. A long text is added in pieces while scrolling, so that 100 KB
// open as fast as a line. Colours are classes.
import { state } from "./address.js";
import { button, byId, make } from "./dom.js";
import { count, isNumber, percent, plain } from "./numbers.js";
import { quantile } from "./scales.js";
import { visible } from "./visible.js";

// Shown at first, for a whole group: enough to fill any screen.
const FIRST_TOKENS = 6000;
const MORE_TOKENS = 1500;
const FIRST_CHARACTERS = 4000;
const MORE_CHARACTERS = 20000;
const NUM_LEVELS = 6;

// Quantities for colours: a number for each token, and its share of the scale (-1 to 1, or 0 to 1).
const QUANTITIES = {
  ratio: { words: "probability ratio, after the step / before", isDiverging: true, values: (tokens) => tokens.ratio,
    measure: (value) => Math.abs(Math.log(value)), least: 0.01, share: (value, top) => Math.log(value) / top,
    ends: (top) => [`÷ ${plain(Math.exp(top))}`, "1", `× ${plain(Math.exp(top))}`] },
  kl: { words: "KL to the reference, nats", values: (tokens) => tokens.kl, measure: (value) => value, least: 0.001,
    share: (value, top) => value / top, ends: (top) => ["0", plain(top)] },
  entropy: { words: "entropy, nats", values: (tokens) => tokens.entropy, measure: (value) => value, least: 0.1,
    share: (value, top) => value / top, ends: (top) => ["0", plain(top)] },
  probability: { words: "probability before the step", values: (tokens) => tokens.logprob, measure: () => 1, least: 1,
    share: (value) => 1 - Math.exp(value), ends: () => ["100 %", "0 %"] },
};
// One scale for the whole group, so that its completions can be compared. It ends at the 98th percentile.
export const prepareTokens = (group) => {
  if (!group.has_tokens) return null;
  const quantity = QUANTITIES[state.colour] || QUANTITIES.ratio;
  const all = [];
  for (const { tokens } of group.rollouts) {
    const values = (tokens && quantity.values(tokens)) || [];
    for (const value of values) if (isNumber(value)) all.push(quantity.measure(value));
  }
  if (!all.length) return { quantity, top: null };
  const sorted = Float64Array.from(all).sort();
  return { quantity, top: Math.max(quantity.least, quantile(sorted, 0.98)) };
};
const classOf = (scale, value) => {
  if (!isNumber(value) || scale.top === null) return "";
  const share = Math.max(-1, Math.min(1, scale.quantity.share(value, scale.top)));
  const level = Math.round(Math.abs(share) * NUM_LEVELS);
  if (!level) return "";
  return (scale.quantity.isDiverging ? (share > 0 ? "up-" : "down-") : "heat-") + level;
};
export const showScale = (scale) => {
  byId("colour").value = state.colour in QUANTITIES ? state.colour : "ratio";
  byId("order").value = state.order;
  const legend = byId("scale");
  legend.hidden = !scale;
  if (!scale) return;
  if (scale.top === null) {
    legend.replaceChildren(make("span", "", "not recorded: this run has no reference"));
    return;
  }
  const ends = scale.quantity.ends(scale.top);
  const classes = [];
  for (let level = scale.quantity.isDiverging ? -NUM_LEVELS : 0; level <= NUM_LEVELS; level += 1) {
    const kind = scale.quantity.isDiverging ? (level > 0 ? "up-" : "down-") : "heat-";
    classes.push(level ? kind + Math.abs(level) : "");
  }
  const strip = make("span", "scale-strip");
  strip.append(...classes.map((name) => make("i", name)));
  const middle = ends.length === 3 ? `, ${ends[1]} in the middle` : "";
  legend.replaceChildren(make("span", "", ends[0]), strip, make("span", "", ends.at(-1)));
  legend.setAttribute("aria-label", `${scale.quantity.words}: from ${ends[0]} to ${ends.at(-1)}${middle}`);
  legend.title = scale.quantity.words;
};

// The text of a completion or a message.
const texts = new WeakMap();
// `numTexts`: number of texts in the dialog, which share the tokens shown at first.
export const textOf = (text, label, { tokens, scale, numTexts }) => {
  const block = make("pre");
  block.tabIndex = 0;
  block.setAttribute("aria-label", visible(label));
  const content = { block, text, tokens: tokens && scale ? tokens : null, scale, numShown: 0, current: -1 };
  texts.set(block, content);
  if (text === "" && !content.tokens) block.classList.add("nothing");
  grow(content, FIRST_CHARACTERS, Math.min(600, Math.ceil(FIRST_TOKENS / numTexts)));
  block.addEventListener("scroll", () => {
    if (block.scrollTop + block.clientHeight * 2 > block.scrollHeight) grow(content, MORE_CHARACTERS, MORE_TOKENS);
  }, { passive: true });
  return block;
};
const grow = (content, numCharacters, numTokens) => {
  const { block, tokens, text } = content;
  const total = tokens ? tokens.pieces.length : text.length;
  if (content.numShown >= total) return;
  let end = Math.min(total, content.numShown + (tokens ? numTokens : numCharacters));
  if (tokens) addTokens(content, end);
  else {
    // Never between the halves of a character or of a line end.
    if (end < total && /[\ud800-\udbff\r]/.test(text[end - 1])) end += 1;
    block.append(visible(text.slice(content.numShown, end)));
  }
  content.numShown = end;
  if (content.rest) content.rest.remove();
  if (end < total) {
    const left = count(total - end) + (tokens ? " tokens" : " characters");
    content.rest = button(`… ${left} more`, () => grow(content, MORE_CHARACTERS, MORE_TOKENS), "rest");
    block.append(content.rest);
  }
};
const addTokens = (content, end) => {
  const { block, tokens, scale } = content;
  const values = scale.quantity.values(tokens);
  const added = document.createDocumentFragment();
  for (let index = content.numShown; index < end; index += 1) {
    const piece = make("span", values ? classOf(scale, values[index]) : "", visible(tokens.pieces[index]));
    piece.dataset.token = index;
    added.append(piece);
  }
  block.append(added);
};
// The figures of a token, beside it.
const tip = byId("tip");
export const hideTip = () => { tip.hidden = true; };
const showTip = (piece) => {
  const content = texts.get(piece.closest("pre"));
  if (!content || !content.tokens) return;
  const index = Number(piece.dataset.token);
  const { tokens } = content;
  const logprob = tokens.logprob[index];
  const lines = [["token", `${index + 1} of ${tokens.pieces.length}`],
    ["probability", isNumber(logprob) ? percent(Math.exp(logprob)) : "–"], ["logprob", plain(logprob)],
    ["ratio", plain(tokens.ratio[index])], ["KL", tokens.kl ? plain(tokens.kl[index]) : "no reference"],
    ["entropy", plain(tokens.entropy[index])]];
  const list = make("dl");
  for (const [name, value] of lines) list.append(make("dt", "", name), make("dd", "", value));
  tip.replaceChildren(make("code", "", JSON.stringify(visible(tokens.pieces[index]))), list);
  tip.hidden = false;
  const box = piece.getBoundingClientRect();
  const room = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(innerWidth - room.width - 8, box.left));
  const top = box.bottom + room.height + 12 > innerHeight ? box.top - room.height - 6 : box.bottom + 6;
  tip.style.left = left + "px";
  tip.style.top = Math.max(8, top) + "px";
};
const walk = (event) => {
  const content = event.target.tagName === "PRE" ? texts.get(event.target) : null;
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!content || !content.tokens || !by || event.altKey || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  if (content.current + by >= content.numShown) grow(content, 0, MORE_TOKENS);
  content.current = Math.max(0, Math.min(content.tokens.pieces.length - 1, content.current + by));
  for (const other of content.block.querySelectorAll(".current")) other.classList.remove("current");
  const piece = content.block.querySelector(`[data-token="${content.current}"]`);
  piece.classList.add("current");
  piece.scrollIntoView({ block: "nearest" });
  // Scrolling hides the tip; show it after that.
  setTimeout(() => showTip(piece), 30);
};
export const listenToTokens = (dialog) => {
  dialog.addEventListener("pointerover", (event) => {
    if (event.target.dataset && event.target.dataset.token !== undefined) showTip(event.target);
    else hideTip();
  });
  dialog.addEventListener("scroll", hideTip, { capture: true, passive: true });
  // Arrow keys move over the tokens of a text.
  dialog.addEventListener("keydown", walk, { capture: true });
};
